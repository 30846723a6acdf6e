// Where the weights of two runs part: compares checkpoints bit by bit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_dir.h"

namespace nsa {

// How the weights of two checkpoints differ. The first tensor and its first element, in the order
// of the file, which is that of the model: embedding, layers, head.
struct WeightDifference {
  int64_t tensors = 0;    // in each checkpoint
  int64_t differing = 0;  // of them
  std::string first;
  int64_t element = 0;  // of `first`, from 0 on
  float a = 0, b = 0;   // its values
};

// Compares every bit of model.safetensors; nothing if all are equal. If both manifests name the
// same hash, the files are not read. NotFound or DataLoss when one cannot be read;
// FailedPrecondition when the models have other tensors or shapes.
absl::StatusOr<std::optional<WeightDifference>> CompareWeights(const std::filesystem::path& a,
                                                               const std::filesystem::path& b);

struct CheckpointParting {
  std::vector<int64_t> equal;                  // steps with equal weights, before the first other
  int64_t step = 0;                            // the first step with other weights; 0: none
  std::optional<WeightDifference> difference;  // at `step`
  std::vector<std::string> unreadable;         // one line for each step that was left out
};

// Compares the checkpoints of the steps that both runs have, the oldest first, up to the first
// whose weights differ. FailedPrecondition as above.
absl::StatusOr<CheckpointParting> FindParting(const std::vector<CheckpointEntry>& a,
                                              const std::vector<CheckpointEntry>& b);

}  // namespace nsa
