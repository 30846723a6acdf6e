#include "common/export/checkpoint_model.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/load.h"
#include "common/preflight/preflight.h"

namespace nsa {

absl::StatusOr<CheckpointModel> ReadCheckpointModel(const std::filesystem::path& path) {
  NSA_ASSIGN_OR_RETURN(const NewestGood found, FindNamed(path));
  CheckpointModel model{.path = found.entry.path, .state = {}};
  const std::vector<std::string> problems = VerifyCheckpoint(model.path);
  if (!problems.empty()) {
    return absl::DataLossError(
        absl::StrFormat("checkpoint %s: %s", model.path.string(), absl::StrJoin(problems, "; ")));
  }
  NSA_ASSIGN_OR_RETURN(model.state, ReadCheckpointState(model.path));
  ApplyDefaults(model.state.mutable_spec());
  if (const absl::Status sizes = CheckSizes(model.state.spec()); !sizes.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("state.json: spec: ", sizes.message()));
  }
  return model;
}

}  // namespace nsa
