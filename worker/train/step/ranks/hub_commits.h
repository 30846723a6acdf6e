// At which commits a run reads branches of the Hugging Face Hub: those of the checkpoint that it
// continues from, so that a push to a branch never changes what a run is trained on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/data/url.h"
#include "nsa/v1/data.pb.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm/comm.h"

namespace nsa::train {

struct AgreedCommits {
  HubCommits commits;
  // On rank 0, of each branch that is elsewhere now than at the commit of the checkpoint.
  std::vector<std::string> moved;
};

// Whether the data names branches or tags of the Hub, so that ranks must agree on commits.
bool ReadsHubBranches(const v1::DataSpec& data);

// The lowest rank that has a checkpoint with commits decides for all; without one it is rank 0, and
// asks the Hub. A collective. The errors of Remote, the same on every rank; with
// data.allow_synthetic_fallback nothing is agreed on instead.
absl::StatusOr<AgreedCommits> AgreeOnHubCommits(const v1::WorkerLaunch& launch, Comm* comm);

}  // namespace nsa::train
