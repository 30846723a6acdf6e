// Writes files in the safetensors format, F32 only. common/checkpoint/safetensors_file.h describes
// the format and reads it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/safetensors_file.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/folder.h"

namespace nsa::train {

// A tensor to write. `values` is borrowed; its size is the product of `shape`.
struct TensorToWrite {
  std::string name;
  std::vector<int64_t> shape;
  std::span<const float> values;
};

// Writes the file `name` in `folder` and calls fsync. The data begins at a multiple of 8 bytes.
// Returns name, length and hash.
absl::StatusOr<v1::CheckpointFile> WriteSafetensors(
    const Folder& folder, const std::string& name, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata);

}  // namespace nsa::train
