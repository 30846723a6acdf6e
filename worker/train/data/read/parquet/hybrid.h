// Reads Parquet's hybrid of run lengths and bit-packed numbers, which holds definition levels and
// the indices into a dictionary.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa::train::parquet {

// Takes no memory, whatever the runs claim.
class HybridReader {
 public:
  // bit_width: 0 to 32.
  HybridReader(std::string_view bytes, int bit_width) : bytes_(bytes), bit_width_(bit_width) {}

  // The next number, which is not consumed, and how many times it follows itself for sure (at least
  // once).
  struct Run {
    uint32_t value = 0;
    int64_t count = 0;
  };
  // DataLoss at the end of the bytes.
  absl::StatusOr<Run> Peek();

  // Consumes `count` numbers, at most as many as the last Peek() said.
  void Advance(int64_t count) { left_ -= count; }

 private:
  absl::Status NextRun();
  absl::StatusOr<uint32_t> Unpacked() const;

  const std::string_view bytes_;
  const int bit_width_;
  size_t position_ = 0;   // of the next run
  int64_t left_ = 0;      // numbers of this run
  bool packed_ = false;   // this run is bit-packed
  int64_t count_ = 0;     // numbers in this run
  size_t run_begin_ = 0;  // of a bit-packed run's bytes
  uint32_t repeated_ = 0;
};

}  // namespace nsa::train::parquet
