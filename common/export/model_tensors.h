// The names and shapes of a model's tensors, in the order of a checkpoint's model.safetensors. The
// trainer's own list (worker/train/model/parameters.h) is the same; a test compares them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nsa/v1/job.pb.h"

namespace nsa {

struct ModelTensor {
  std::string name;
  std::vector<int64_t> shape;  // [out, in] for matrices
  int64_t size = 0;            // elements
  int64_t gap = 0;             // elements that the trainer keeps free behind it, besides alignment
};

// `spec` must have its defaults filled in and sizes within the limits of preflight.
std::vector<ModelTensor> ModelTensors(const v1::JobSpec& spec);

// Elements of a flat buffer with a layout of these tensors, each beginning at a multiple of 16: the
// size of AdamW's moments in a checkpoint.
int64_t FlatElements(const std::vector<ModelTensor>& tensors);

}  // namespace nsa
