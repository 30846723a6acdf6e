#include "worker/train/data/batches.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {
namespace {

// Writes, for each token, the position in the row at which its document starts.
template <typename Begins>
void FindDocuments(std::span<const int32_t> tokens, Begins begins, int32_t* doc_start) {
  int32_t start = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (begins(tokens[t])) start = static_cast<int32_t>(t);
    doc_start[t] = start;
  }
}

// Takes the marks off the tokens of a row. The targets, which are all of them but the first, become
// −1 where they are not learned.
void TakeMarks(std::span<int32_t> row, std::span<int32_t> targets) {
  for (size_t t = 1; t < row.size(); ++t) {
    targets[t - 1] = (row[t] & kAnswerMark) != 0 ? WithoutMarks(row[t]) : -1;
  }
  for (int32_t& token : row) token = WithoutMarks(token);
}

}  // namespace

DataPosition Advance(DataPosition position, int64_t count, int64_t rows) {
  position.sequence += count;
  position.epoch += position.sequence / rows;
  position.sequence %= rows;
  return position;
}

BatchMaker::BatchMaker(BatchShape shape, std::shared_ptr<RowSource> source)
    : shape_(shape),
      source_(std::move(source)),
      order_(shape.seed, source_->rows()),
      in_order_(shape.validation || source_->in_order()) {}

absl::StatusOr<Batch> BatchMaker::Make(const DataPosition& position) const {
  const int32_t seq_len = shape_.seq_len;
  Batch batch;
  batch.rows = shape_.rows();
  batch.seq_len = seq_len / shape_.context;
  batch.source = source_->source();
  batch.tokens.resize(static_cast<size_t>(batch.rows) * batch.seq_len);
  batch.targets.resize(batch.tokens.size());
  const bool marked = source_->marked();
  const bool documents = marked || shape_.document_mask;
  if (documents) batch.doc_start.resize(static_cast<size_t>(batch.rows) * seq_len);
  std::vector<int32_t> row(seq_len + 1), targets(seq_len);
  for (int32_t b = 0; b < batch.rows; ++b) {
    const DataPosition at = Advance(position, shape_.first_row() + b, order_.rows());
    if (b == 0) batch.epoch = at.epoch;
    const std::optional<int32_t> part = source_->PartOf(at.sequence);
    if (part && !shape_.validation) batch.parts.push_back(*part);
    const int64_t index = in_order_ ? at.sequence : order_.Row(at.epoch, at.sequence);
    const int64_t shift = in_order_ ? 0 : ShiftOfEpoch(shape_.seed, at.epoch, seq_len);
    NSA_RETURN_IF_ERROR(
        Annotate(source_->ReadShifted(index, shift, row), absl::StrCat("data row ", index)));
    if (b == 0) batch.epoch = source_->epoch().value_or(batch.epoch);
    if (documents) {
      const int32_t separator = source_->separator();
      FindDocuments(
          std::span(row).first(seq_len),
          [&](int32_t token) { return marked ? (token & kBeginMark) != 0 : token == separator; },
          &batch.doc_start[static_cast<size_t>(b) * seq_len]);
    }
    if (marked) {
      TakeMarks(row, targets);
    } else {
      std::copy(row.begin() + 1, row.end(), targets.begin());
    }
    const auto outside = std::find_if(row.begin(), row.end(), [this](int32_t token) {
      return token < 0 || token >= shape_.vocab;
    });
    if (outside != row.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data row %d: token %d (model.vocab is %d); raise model.vocab", index,
                          *outside, shape_.vocab));
    }
    const ptrdiff_t offset = static_cast<ptrdiff_t>(b) * batch.seq_len;
    const ptrdiff_t first = static_cast<ptrdiff_t>(shape_.part) * batch.seq_len;
    std::copy_n(row.begin() + first, batch.seq_len, batch.tokens.begin() + offset);
    std::copy_n(targets.begin() + first, batch.seq_len, batch.targets.begin() + offset);
  }
  return batch;
}

}  // namespace nsa::train
