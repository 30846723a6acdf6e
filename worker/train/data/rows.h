// Sources of rows of S + 1 tokens, from which the loader makes batches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job.pb.h"

namespace nsa::train {

// The rows of a source without an end.
inline constexpr int64_t kEndlessRows = int64_t{1} << 40;

// Where a source that is read in passing (stream/stream_rows.h) has to begin again for the rows
// that follow.
struct StreamMark {
  v1::StreamPosition window;  // the beginning of the window that has the next row
  int64_t epoch = 0;          // of the row before it, 0-based
};

// A fixed number of rows; the content of a row depends only on its index and the shift. Only one
// thread at a time may use a source.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Number of rows in an epoch; at least 1.
  virtual int64_t rows() const = 0;

  // The token that begins a document; kNoSeparator (common/job/data_source.h) if there is none.
  virtual int32_t separator() const = 0;

  virtual v1::DataSource source() const = 0;

  // The source of a row if there are several, see mix.h; otherwise 0.
  virtual int32_t PartOf(int64_t /*row*/) const { return 0; }

  // Fills `tokens` with row `row`, in [0, rows()). Its size is S + 1 for the row length S that the
  // source was made for.
  virtual absl::Status Read(int64_t row, std::span<int32_t> tokens) = 0;

  // The same, but with every row cut `shift` tokens later, 0 to S − 1. A source whose rows are not
  // cut from one text has no such cuts: it gives row `row` whatever the shift.
  virtual absl::Status ReadShifted(int64_t row, int64_t /*shift*/, std::span<int32_t> tokens) {
    return Read(row, tokens);
  }

  // How many rows there are; if there are more than `wanted`, any number from `wanted` on. A stream
  // reads on until it knows.
  virtual absl::StatusOr<int64_t> RowsUpTo(int64_t /*wanted*/) { return rows(); }

  // No row before `row` is read again, of a stream. Of each source that is one, in their order: its
  // mark.
  virtual absl::StatusOr<std::vector<StreamMark>> PassTo(int64_t /*row*/) {
    return std::vector<StreamMark>();
  }

  // Of a stream: the epoch, 0-based, of the row that was read last.
  virtual std::optional<int64_t> epoch() const { return std::nullopt; }

  // Grows while a read makes progress. Any thread may call it, and Cancel(), which makes the read
  // under way and all later ones of a stream end soon with Cancelled.
  virtual int64_t progress() const { return 0; }
  virtual void Cancel() {}
};

}  // namespace nsa::train
