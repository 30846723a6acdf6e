// A checkpoint whose model is exported or converted.
#pragma once

#include <filesystem>

#include "absl/status/statusor.h"
#include "nsa/v1/checkpoint.pb.h"

namespace nsa {

struct CheckpointModel {
  std::filesystem::path path;  // of the checkpoint folder
  v1::CheckpointState state;   // its spec has its defaults filled in
};

// The checkpoint that `path` names (FindNamed() of common/checkpoint/checkpoint_dir.h). Its files
// are verified. The errors of FindNamed(), DataLoss, FailedPrecondition (sizes of the model that no
// job can have).
absl::StatusOr<CheckpointModel> ReadCheckpointModel(const std::filesystem::path& path);

}  // namespace nsa
