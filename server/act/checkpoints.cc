#include "server/act/checkpoints.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/checkpoint_info.h"

namespace nsa::server {

absl::StatusOr<v1::ListCheckpointsResponse> CheckpointsOf(const std::string& out_dir) {
  NSA_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(out_dir));
  v1::ListCheckpointsResponse response;
  for (const CheckpointEntry& entry : entries)
    *response.add_checkpoints() = CheckpointInfoOf(entry);
  return response;
}

absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& out_dir, int64_t step,
                                                    const std::function<bool()>& abandoned) {
  NSA_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(out_dir));
  const auto found = step == 0 ? (entries.empty() ? entries.end() : std::prev(entries.end()))
                               : std::ranges::find(entries, step, &CheckpointEntry::step);
  if (found == entries.end()) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint: ", step == 0 ? "none" : absl::StrCat("none of step ", step),
                     " in ", out_dir, "; `nsactl checkpoint list` shows what there is"));
  }
  v1::VerifyCheckpointResponse response;
  *response.mutable_checkpoint() = CheckpointInfoOf(*found);
  for (const std::string& problem : VerifyCheckpoint(found->path, abandoned)) {
    response.add_problems(problem);
  }
  if (abandoned())
    return absl::CancelledError("verification was cancelled: the client no longer waits");
  return response;
}

}  // namespace nsa::server
