#include "worker/train/data/order.h"

#include "worker/train/data/random.h"

namespace nsa::train {
namespace {

constexpr int kRounds = 4;
constexpr uint64_t kShiftKey = 0x7368696674;  // apart from the keys of the order

}  // namespace

RowOrder::RowOrder(int64_t seed, int64_t rows) : seed_(static_cast<uint64_t>(seed)), rows_(rows) {
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < rows) ++half_bits_;
}

int64_t RowOrder::Row(int64_t epoch, int64_t sequence) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const uint64_t key = Mix(seed_, static_cast<uint64_t>(epoch));
  auto value = static_cast<uint64_t>(sequence);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (Mix(key, static_cast<uint64_t>(round), right) & mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<uint64_t>(rows_));
  return static_cast<int64_t>(value);
}

int64_t ShiftOfEpoch(int64_t seed, int64_t epoch, int32_t seq_len) {
  if (epoch == 0) return 0;
  KeyedRandom random(Mix(static_cast<uint64_t>(seed), static_cast<uint64_t>(epoch), kShiftKey));
  return random.Below(static_cast<uint32_t>(seq_len));
}

}  // namespace nsa::train
