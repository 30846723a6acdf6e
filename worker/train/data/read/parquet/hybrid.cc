#include "worker/train/data/read/parquet/hybrid.h"

#include <algorithm>
#include <cstring>

#include "common/base/status.h"

namespace nsa::train::parquet {
namespace {

absl::Status EndsTooEarly() { return absl::DataLossError("runs end too early"); }

}  // namespace

absl::Status HybridReader::NextRun() {
  uint64_t header = 0;
  int shift = 0;
  while (true) {
    if (position_ == bytes_.size() || shift > 28) return EndsTooEarly();
    const auto byte = static_cast<uint8_t>(bytes_[position_++]);
    header |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
    shift += 7;
  }
  packed_ = (header & 1) != 0;
  const size_t left = bytes_.size() - position_;
  if (packed_) {  // groups of eight; some writers leave out the last bytes of the last group
    count_ = static_cast<int64_t>(header >> 1) * 8;
    run_begin_ = position_;
    position_ += std::min(left, (header >> 1) * static_cast<size_t>(bit_width_));
  } else {
    count_ = static_cast<int64_t>(header >> 1);
    const size_t width = static_cast<size_t>(bit_width_ + 7) / 8;
    if (width > left) return EndsTooEarly();
    repeated_ = 0;
    std::memcpy(&repeated_, bytes_.data() + position_, width);
    position_ += width;
  }
  left_ = count_;
  return absl::OkStatus();
}

// The next number of a bit-packed run: `bit_width_` bits, the lowest first.
absl::StatusOr<uint32_t> HybridReader::Unpacked() const {
  const uint64_t bit = static_cast<uint64_t>(count_ - left_) * bit_width_;
  const size_t begin = run_begin_ + bit / 8;
  const size_t end = run_begin_ + (bit + bit_width_ + 7) / 8;
  if (end > position_) return EndsTooEarly();
  uint64_t word = 0;
  std::memcpy(&word, bytes_.data() + begin, end - begin);
  return static_cast<uint32_t>((word >> (bit % 8)) & ((uint64_t{1} << bit_width_) - 1));
}

absl::StatusOr<HybridReader::Run> HybridReader::Peek() {
  while (left_ == 0) NSA_RETURN_IF_ERROR(NextRun());
  if (!packed_) return Run{repeated_, left_};
  NSA_ASSIGN_OR_RETURN(const uint32_t value, Unpacked());
  return Run{value, 1};
}

}  // namespace nsa::train::parquet
