#include "client/commands/fork/continued_job.h"

#include <filesystem>
#include <iterator>

#include "common/base/status.h"
#include "common/job/labels.h"

namespace nsa::client {

absl::StatusOr<std::vector<v1::CheckpointInfo>> ReadableCheckpoints(Client* client,
                                                                    const std::string& job) {
  NSA_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse all, client->ListCheckpoints(job));
  std::vector<v1::CheckpointInfo> readable;
  for (const v1::CheckpointInfo& checkpoint : all.checkpoints()) {
    if (checkpoint.error().empty()) readable.push_back(checkpoint);
  }
  return readable;
}

v1::JobSpec ContinuedSpec(const v1::Job& job, const std::string& name,
                          const std::string& checkpoint) {
  v1::JobSpec spec = job.spec();
  spec.set_name(name);
  const std::filesystem::path out_dir = spec.train().out_dir();
  spec.mutable_train()->set_out_dir(out_dir.parent_path() / name);
  if (!checkpoint.empty()) {
    spec.mutable_restart()->set_resume(checkpoint);
    spec.mutable_restart()->clear_init();
  }
  // Nor does it belong to a sweep, whose labels find its jobs and say their values.
  if (spec.has_sweep()) {
    auto& labels = *spec.mutable_labels();
    for (auto label = labels.begin(); label != labels.end();) {
      label = IsLabelOfSweep(label->first) ? labels.erase(label) : std::next(label);
    }
  }
  spec.clear_sweep();
  // What the job waited for is over.
  spec.clear_after();
  spec.clear_not_before();
  return spec;
}

}  // namespace nsa::client
