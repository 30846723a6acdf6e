#include "worker/train/data/stream/windows.h"

#include <algorithm>
#include <utility>

#include "worker/train/data/order.h"

namespace nsa::train {
namespace {

constexpr int64_t kFirstTokens = int64_t{1} << 19;  // of the first window

}  // namespace

void Windows::Begin(const StreamPlace& place, int64_t sequence) {
  full_.clear();
  open_ = {.place = place, .begin = sequence};
  partial_.clear();
  passed_ = sequence;
  passed_epoch_ = place.epoch;
}

int64_t Windows::Limit() const {
  const int64_t first = std::max<int64_t>(1, kFirstTokens / options_.seq_len);
  return std::min(options_.size, open_.begin + first);
}

void Windows::Append(std::span<const Token> tokens, StreamPlace at) {
  const auto whole = static_cast<size_t>(options_.seq_len) + 1;
  while (!tokens.empty()) {
    const auto some = tokens.first(std::min(whole - partial_.size(), tokens.size()));
    partial_.insert(partial_.end(), some.begin(), some.end());
    tokens = tokens.subspan(some.size());
    at.token += std::ssize(some);
    if (partial_.size() < whole) return;
    AddRow({at.epoch, at.file, at.document, at.token - 1});
  }
}

// The last token of a row is the first one of the next.
void Windows::AddRow(const StreamPlace& last) {
  Row row;
  if (free_.empty()) {
    row =
        std::make_unique_for_overwrite<std::byte[]>(partial_.size() * static_cast<size_t>(width_));
  } else {
    row = std::move(free_.back());
    free_.pop_back();
  }
  PackTokens(partial_, width_, row.get());
  open_.rows.push_back(std::move(row));
  open_.epoch = last.epoch;
  last_ = last;
  partial_.assign(1, partial_.back());
  if (std::ssize(open_.rows) == Limit()) Close();
}

void Windows::Close() {
  const int64_t end = open_.end();
  full_.push_back(std::move(open_));
  open_ = {.place = last_, .begin = end};
}

void Windows::EndEpoch() {
  if (!open_.rows.empty()) Close();
}

size_t Windows::IndexOf(const Window& window, int64_t row) const {
  const RowOrder order(options_.seed, std::ssize(window.rows));
  return static_cast<size_t>(order.Row(window.begin, row - window.begin));
}

void Windows::PassTo(int64_t row) {
  for (; passed_ < row; ++passed_) {
    Window& window = full_.front();
    passed_epoch_ = window.epoch;
    free_.push_back(std::move(window.rows[IndexOf(window, passed_)]));
    if (passed_ + 1 == window.end()) full_.pop_front();
  }
}

int64_t Windows::Read(int64_t row, std::span<Token> tokens) const {
  const Window& window = full_.front();
  UnpackTokens(window.rows[IndexOf(window, row)].get(), width_, tokens);
  return window.epoch;
}

bool Windows::WantsMore(int64_t row) const {
  if (full_.size() != 1) return false;
  const Window& window = full_.front();
  const int64_t turn = row - window.begin + 1;
  // ⌈limit · turn / rows⌉ > rows that are there.
  return Limit() * turn > std::ssize(open_.rows) * std::ssize(window.rows);
}

}  // namespace nsa::train
