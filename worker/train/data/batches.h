// Computes a rank's micro-batch from a position in the data. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/order.h"
#include "worker/train/data/rows.h"

namespace nsa::train {

// One rank's share of a micro-batch, row-major.
struct Batch {
  int32_t rows = 0;
  int32_t seq_len = 0;             // S/N: S, or with BatchShape::context the tokens of its part
  std::vector<int32_t> tokens;     // [rows, S/N]
  std::vector<int32_t> targets;    // [rows, S/N]: the next token; −1 for one that is not learned
  std::vector<int32_t> doc_start;  // [rows, S], of all tokens: the first position of the row that
                                   // belongs to the token's document; empty without
                                   // data.document_mask, unless the source is marked. The separator
                                   // belongs to the document that it begins.
  v1::DataSource source = v1::DATA_SOURCE_UNSPECIFIED;  // SYNTHETIC after a fallback
  int64_t epoch = 0;           // of its first row, 0-based; 0 with data.mix
  std::vector<int32_t> parts;  // with data.mix: the source of each row, an index in it
};

// The properties that all batches of a loader share.
struct BatchShape {
  int32_t seq_len = 0;
  int32_t batch_size = 0;  // rows of a micro-batch, over all ranks
  int32_t rank = 0;
  int32_t world_size = 1;
  // Every row is cut into `context` equal parts, which divide S, and this loader gives part `part`
  // of its tokens and targets; `rank` and `world_size` are then those of the ranks that share rows.
  int32_t context = 1;
  int32_t part = 0;
  int32_t vocab = 0;
  int64_t seed = 0;
  bool document_mask = false;
  // Rows 0, 1, 2, … in every epoch, cut at the same places, instead of in the order of `seed`, and
  // without Batch::parts.
  bool validation = false;

  int32_t first_row() const { return RowOf(rank); }
  int32_t rows() const { return RowOf(rank + 1) - RowOf(rank); }

 private:
  int32_t RowOf(int32_t r) const {
    return static_cast<int32_t>(int64_t{r} * batch_size / world_size);
  }
};

// A position in the row order: the first `sequence` rows of epoch `epoch` have been used.
struct DataPosition {
  int64_t epoch = 0;
  int64_t sequence = 0;
  bool operator==(const DataPosition&) const = default;
};

// The position `count` rows later, with `rows` rows in an epoch.
DataPosition Advance(DataPosition position, int64_t count, int64_t rows);

class BatchMaker {
 public:
  BatchMaker(BatchShape shape, std::shared_ptr<RowSource> source);

  int64_t rows() const { return order_.rows(); }
  RowSource& source() const { return *source_; }

  // This rank's share of the batch_size rows after `position`; they may continue into the next
  // epoch. InvalidArgument if the source has a token outside the vocabulary.
  absl::StatusOr<Batch> Make(const DataPosition& position) const;

 private:
  const BatchShape shape_;
  // Shared with the loader and with the prefetch thread, which may hang in it.
  const std::shared_ptr<RowSource> source_;
  const RowOrder order_;
  const bool in_order_;
};

}  // namespace nsa::train
