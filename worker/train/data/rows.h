// Sources of rows of S + 1 tokens, from which the loader makes batches.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// A fixed number of rows; each depends only on its index. One thread at a time.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Rows of an epoch; at least 1.
  virtual int64_t rows() const = 0;

  // The token that begins a document.
  virtual int32_t separator() const = 0;

  virtual v1::DataSource source() const = 0;

  // Fills `tokens`, which holds the S + 1 tokens that the source was made for, with row `row` in
  // [0, rows()).
  virtual absl::Status Read(int64_t row, std::span<int32_t> tokens) = 0;
};

}  // namespace nsa
