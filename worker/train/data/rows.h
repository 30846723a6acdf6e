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

// Where a source of a job is: one of data.mix, or the only one.
struct SourceMark {
  // Of a source that is read in passing (stream/stream_rows.h), where it has to begin again for the
  // rows that follow: the beginning of the window that has the next one.
  std::optional<v1::StreamPosition> window;
  int64_t epoch = 0;  // of the row before it, 0-based
};

// A fixed number of rows; the content of a row depends only on its index and the shift. Only one
// thread at a time may use a source.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Number of rows in an epoch; at least 1.
  virtual int64_t rows() const = 0;

  // Rows to report; 0 if not counted; the sum for several sources.
  virtual int64_t counted_rows() const { return rows(); }

  // Whether it orders its rows itself: then they are asked for as 0, 1, 2, …
  virtual bool in_order() const { return false; }

  // The token that begins a document; kNoSeparator (common/job/data_source.h) if there is none.
  virtual int32_t separator() const = 0;

  virtual v1::DataSource source() const = 0;

  // Whether its tokens have marks (tokens/token.h): where documents begin, and which are predicted.
  // Without them every token is predicted, and a document begins with the separator.
  virtual bool marked() const { return false; }

  // The source of a row if there are several, see mix.h.
  virtual std::optional<int32_t> PartOf(int64_t /*row*/) const { return std::nullopt; }

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

  // No row before `row` is read again.
  virtual absl::Status PassTo(int64_t /*row*/) { return absl::OkStatus(); }

  // The marks of its sources in their order, if rows before `row` have been passed; none if the
  // row says all.
  virtual std::vector<SourceMark> Marks(int64_t /*row*/) const { return {}; }

  // Goes on with row `row`, before anything is read, from the windows that Marks() had there; there
  // are as many as it has now. InvalidArgument for one that cannot be of this data.
  virtual absl::Status Seek(int64_t /*row*/, std::span<const v1::StreamPosition> /*windows*/) {
    return absl::OkStatus();
  }

  // Of a stream: the epoch, 0-based, of the row that was read last.
  virtual std::optional<int64_t> epoch() const { return std::nullopt; }

  // Grows while a read makes progress. Any thread may call it, and Cancel(), which makes the read
  // under way and all later ones of a stream end soon with Cancelled.
  virtual int64_t progress() const { return 0; }
  virtual void Cancel() {}
};

}  // namespace nsa::train
