// The format: a header (numbers in a block, miniblocks in a block, numbers, first number), then
// blocks: the smallest difference, the bit width of each miniblock, and the miniblocks. Each has
// the differences less the smallest one, bit-packed. Miniblocks behind the last number have no
// bytes.
#include "worker/train/data/read/parquet/delta.h"

#include <algorithm>
#include <cstring>

#include "common/base/status.h"

namespace nsa::train::parquet {
namespace {

constexpr int64_t kLargestBlock = 1 << 16;

absl::Status Damaged() { return absl::DataLossError("numbers of a delta encoding are damaged"); }

}  // namespace

absl::StatusOr<DeltaIntegers> DeltaIntegers::Open(std::string_view bytes) {
  DeltaIntegers numbers(bytes);
  NSA_RETURN_IF_ERROR(numbers.ReadHeader());
  return numbers;
}

absl::StatusOr<uint64_t> DeltaIntegers::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && position_ < bytes_.size(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes_[position_++]);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  return Damaged();
}

absl::StatusOr<int64_t> DeltaIntegers::Zigzag() {
  NSA_ASSIGN_OR_RETURN(const uint64_t value, Varint());
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

absl::Status DeltaIntegers::ReadHeader() {
  NSA_ASSIGN_OR_RETURN(const uint64_t block, Varint());
  NSA_ASSIGN_OR_RETURN(const uint64_t miniblocks, Varint());
  NSA_ASSIGN_OR_RETURN(const uint64_t count, Varint());
  NSA_ASSIGN_OR_RETURN(const int64_t first, Zigzag());
  if (block == 0 || block > kLargestBlock || miniblocks == 0 || block % miniblocks != 0 ||
      (block / miniblocks) % 8 != 0 || count > INT32_MAX) {
    return Damaged();
  }
  miniblocks_ = static_cast<int64_t>(miniblocks);
  per_miniblock_ = static_cast<int64_t>(block / miniblocks);
  count_ = static_cast<int64_t>(count);
  value_ = static_cast<uint64_t>(first);
  miniblock_ = miniblocks_;        // no block was read yet
  in_miniblock_ = per_miniblock_;  // nor a miniblock
  return absl::OkStatus();
}

absl::Status DeltaIntegers::BeginBlock() {
  NSA_ASSIGN_OR_RETURN(const int64_t smallest, Zigzag());
  min_delta_ = static_cast<uint64_t>(smallest);
  widths_ = position_;
  if (bytes_.size() - position_ < static_cast<size_t>(miniblocks_)) return Damaged();
  position_ += static_cast<size_t>(miniblocks_);
  miniblock_ = 0;
  return absl::OkStatus();
}

absl::Status DeltaIntegers::BeginMiniblock() {
  if (miniblock_ == miniblocks_) NSA_RETURN_IF_ERROR(BeginBlock());
  width_ = static_cast<uint8_t>(bytes_[widths_ + static_cast<size_t>(miniblock_++)]);
  const auto size = static_cast<size_t>(per_miniblock_ / 8 * width_);
  if (width_ > 64 || size > bytes_.size() - position_) return Damaged();
  packed_ = position_;
  position_ += size;
  in_miniblock_ = 0;
  return absl::OkStatus();
}

// Number `index` of the miniblock: `width_` bits, the lowest first. They may lie in nine bytes.
uint64_t DeltaIntegers::Packed(int64_t index) const {
  if (width_ == 0) return 0;
  const uint64_t bit = static_cast<uint64_t>(index) * width_;
  const size_t begin = packed_ + bit / 8;
  const size_t end = packed_ + (bit + width_ + 7) / 8;
  unsigned __int128 word = 0;
  std::memcpy(&word, bytes_.data() + begin, end - begin);
  const auto value = static_cast<uint64_t>(word >> (bit % 8));
  return width_ == 64 ? value : value & ((uint64_t{1} << width_) - 1);
}

absl::StatusOr<int64_t> DeltaIntegers::Next() {
  if (given_ == count_) return Damaged();
  if (given_ > 0) {
    if (in_miniblock_ == per_miniblock_) NSA_RETURN_IF_ERROR(BeginMiniblock());
    value_ += min_delta_ + Packed(in_miniblock_++);
  }
  ++given_;
  return static_cast<int64_t>(value_);
}

absl::StatusOr<size_t> DeltaIntegers::End() const {
  DeltaIntegers rest = *this;
  int64_t left = count_ - std::max<int64_t>(1, given_) - (per_miniblock_ - in_miniblock_);
  for (; left > 0; left -= per_miniblock_) NSA_RETURN_IF_ERROR(rest.BeginMiniblock());
  return rest.position_;
}

}  // namespace nsa::train::parquet
