// How the flat weights and moments are divided among the ranks for writing, where every rank has
// all of them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "worker/train/model/slice.h"

namespace nsa::train {

// The slice that rank `rank` writes. Slices are contiguous, in rank order, and of equal size except
// for rounding.
inline Slice SliceOf(int64_t total, int32_t rank, int32_t world_size) {
  const auto at = [&](int64_t r) {
    return static_cast<int64_t>(static_cast<__int128>(total) * r / world_size);
  };
  return {at(rank), at(rank + 1)};
}

inline std::string ShardName(int32_t rank, int32_t world_size) {
  return absl::StrFormat("optimizer-%05d-of-%05d.safetensors", rank, world_size);
}

// A rank's slice of the weights on its way into model.safetensors: fp32 without a header. Not in a
// complete checkpoint.
inline std::string WeightsName(int32_t rank, int32_t world_size) {
  return absl::StrFormat("weights-%05d-of-%05d.part", rank, world_size);
}

inline constexpr char kFirstMoment[] = "exp_avg";
inline constexpr char kSecondMoment[] = "exp_avg_sq";

}  // namespace nsa::train
