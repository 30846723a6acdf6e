#include "worker/train/data/packed_rows.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "common/base/status.h"

namespace nsa::train {

// Finds the conversations of a store and chooses their rows.
class PackedRows::Packer {
 public:
  // `width`: tokens of a row, S + 1.
  explicit Packer(int64_t width) : width_(width) {}

  absl::Status Read(const TokenStore& store) {
    constexpr int64_t kAtATime = 1 << 16;
    std::vector<Token> tokens;
    for (int64_t at = 0; at < store.size(); at += kAtATime) {
      tokens.resize(static_cast<size_t>(std::min(kAtATime, store.size() - at)));
      NSA_RETURN_IF_ERROR(store.Copy(at, tokens));
      for (size_t i = 0; i < tokens.size(); ++i) Add(at + static_cast<int64_t>(i), tokens[i]);
    }
    Place(store.size());
    return absl::OkStatus();
  }

  // Appends the conversations to `rows`, sorted by their rows.
  void Finish(PackedRows* rows) {
    rows->begins_.assign(static_cast<size_t>(count_) + 1, 0);
    for (const int64_t row : row_of_) ++rows->begins_[static_cast<size_t>(row) + 1];
    std::partial_sum(rows->begins_.begin(), rows->begins_.end(), rows->begins_.begin());
    std::vector<int64_t> next(rows->begins_.begin(), rows->begins_.end() - 1);
    rows->pieces_.resize(pieces_.size());
    int64_t kept = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto place = static_cast<size_t>(next[static_cast<size_t>(row_of_[i])]++);
      rows->pieces_[place] = pieces_[i];
      kept += pieces_[i].tokens;
    }
    summary_.set_positions(count_ * width_);
    summary_.set_padding_tokens(count_ * width_ - kept);
    rows->summary_ = std::move(summary_);
  }

 private:
  void Add(int64_t at, Token token) {
    if ((token & kBeginMark) != 0) {
      Place(at);
      begin_ = at;
      answers_ = 0;
    }
    if ((token & kAnswerMark) != 0 && at - begin_ < width_) ++answers_;
  }

  // Gives the conversation that ends at `end` a row.
  void Place(int64_t end) {
    const int64_t length = end - begin_;
    if (length == 0) return;
    const int64_t kept = std::min(length, width_);
    if (answers_ == 0) {
      summary_.set_unlearned_documents(summary_.unlearned_documents() + 1);
      return;
    }
    if (kept < length) {
      summary_.set_cut_documents(summary_.cut_documents() + 1);
      summary_.set_cut_tokens(summary_.cut_tokens() + length - kept);
    }
    summary_.set_answer_tokens(summary_.answer_tokens() + answers_);
    pieces_.push_back({begin_, kept});
    row_of_.push_back(RowFor(kept));
  }

  int64_t RowFor(int64_t tokens) {
    const auto fullest = room_.lower_bound({tokens, 0});
    const auto [room, row] =
        fullest == room_.end() ? std::pair(width_, count_++) : std::pair(*fullest);
    if (fullest != room_.end()) room_.erase(fullest);
    if (room > tokens) room_.insert({room - tokens, row});
    return row;
  }

  const int64_t width_;
  int64_t begin_ = 0;                           // of the conversation that is read
  int64_t answers_ = 0;                         // of its tokens that are kept
  int64_t count_ = 0;                           // rows
  std::set<std::pair<int64_t, int64_t>> room_;  // tokens that are free in a row, and the row
  std::vector<Piece> pieces_;
  std::vector<int64_t> row_of_;  // each
  v1::PackingSummary summary_;
};

absl::StatusOr<std::shared_ptr<PackedRows>> PackedRows::Pack(
    std::shared_ptr<const TokenStore> store, int32_t seq_len, int32_t separator,
    v1::DataSource source) {
  Packer packer(int64_t{seq_len} + 1);
  NSA_RETURN_IF_ERROR(packer.Read(*store));
  std::shared_ptr<PackedRows> rows(new PackedRows(std::move(store), separator, source));
  packer.Finish(rows.get());
  return rows;
}

absl::Status PackedRows::Read(int64_t row, std::span<int32_t> tokens) {
  const auto begin = static_cast<size_t>(begins_[static_cast<size_t>(row)]);
  const auto end = static_cast<size_t>(begins_[static_cast<size_t>(row) + 1]);
  for (size_t i = begin; i < end; ++i) {
    const auto count = static_cast<size_t>(pieces_[i].tokens);
    NSA_RETURN_IF_ERROR(store_->Copy(pieces_[i].begin, tokens.first(count)));
    tokens = tokens.subspan(count);
  }
  std::ranges::fill(tokens, separator_);
  if (!tokens.empty()) tokens.front() |= kBeginMark;
  return absl::OkStatus();
}

}  // namespace nsa::train
