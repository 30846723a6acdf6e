// Where a trained model is on this machine.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/connect/session.h"

namespace nsa::client {

// What the help says of the argument CHECKPOINT|JOB.
inline constexpr char kModelArgument[] =
    "A checkpoint folder, an out_dir (its newest valid checkpoint), or a job whose out_dir is on "
    "this machine";

// Whether it is a path and no job: ids and names of jobs have no slash.
bool IsPath(const std::string& target);

// The checkpoint folder or out_dir that CHECKPOINT|JOB means. The coordinator is asked only for a
// job, which has no slash and is not a folder with checkpoints. NotFound when there is no
// checkpoint; the errors of Client::GetJob().
absl::StatusOr<std::string> FindModel(Session& session, const std::string& target);

}  // namespace nsa::client
