#include "client/commands/model/find_model.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"

namespace nsa::client {

bool IsPath(const std::string& target) {
  return target.find('/') != std::string::npos || target == "." || target == "..";
}

absl::StatusOr<std::string> FindModel(Session& session, const std::string& target) {
  if (LookUpNamed(target).has_value()) return target;
  if (IsPath(target)) {
    return absl::NotFoundError(absl::StrCat(
        target, ": no checkpoint (a checkpoint folder, an out_dir or a job); see `nsactl list`"));
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(target));
  const std::string& out_dir = job.spec().train().out_dir();
  if (LookUpNamed(out_dir).has_value()) return out_dir;
  return absl::NotFoundError(
      absl::StrCat(target, ": no checkpoint in ", out_dir,
                   " on this machine; run nsactl where the job wrote them, or wait for the first"));
}

}  // namespace nsa::client
