// Reads DELTA_BINARY_PACKED, the numbers in which Parquet's delta encodings keep lengths.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa::train::parquet {

// The numbers one after another, without memory for them.
class DeltaIntegers {
 public:
  // Begins at the first byte of `bytes`, which may go on behind the numbers. DataLoss.
  static absl::StatusOr<DeltaIntegers> Open(std::string_view bytes);

  // How many numbers there are.
  int64_t count() const { return count_; }

  // The next number; DataLoss when there is none or its bits are missing.
  absl::StatusOr<int64_t> Next();

  // The byte behind the last number, found by walking over the blocks.
  absl::StatusOr<size_t> End() const;

 private:
  explicit DeltaIntegers(std::string_view bytes) : bytes_(bytes) {}

  absl::Status ReadHeader();
  absl::Status BeginBlock();
  absl::Status BeginMiniblock();
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<int64_t> Zigzag();
  uint64_t Packed(int64_t index) const;

  std::string_view bytes_;
  size_t position_ = 0;
  int64_t miniblocks_ = 0;  // in a block
  int64_t per_miniblock_ = 0;
  int64_t count_ = 0;
  int64_t given_ = 0;
  uint64_t value_ = 0;  // last number; deltas wrap around
  uint64_t min_delta_ = 0;
  size_t widths_ = 0;         // where the widths of this block's miniblocks are
  int64_t miniblock_ = 0;     // index in the block of the next miniblock
  int64_t in_miniblock_ = 0;  // numbers of this miniblock that were given
  size_t packed_ = 0;         // where this miniblock's bits are
  int width_ = 0;
};

}  // namespace nsa::train::parquet
