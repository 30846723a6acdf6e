// Sources of rows of S + 1 tokens, from which the loader makes batches.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "nsa/v1/job.pb.h"

namespace nsa::train {

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

  // Of which of several sources a row is, see mix.h; 0 if there is only one.
  virtual int32_t PartOf(int64_t /*row*/) const { return 0; }

  // Fills `tokens` with row `row`, in [0, rows()). Its size is S + 1 for the row length S that the
  // source was made for.
  virtual absl::Status Read(int64_t row, std::span<int32_t> tokens) = 0;

  // The same, but with every row cut `shift` tokens later, 0 to S − 1. A source whose rows are not
  // cut from one text has no such cuts: it gives row `row` whatever the shift.
  virtual absl::Status ReadShifted(int64_t row, int64_t /*shift*/, std::span<int32_t> tokens) {
    return Read(row, tokens);
  }
};

}  // namespace nsa::train
