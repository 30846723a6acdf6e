// A canary: the first steps of a job, run in a folder of their own before the job is queued.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connect/session.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::client {

// What a canary measured. The first half of its steps warms up and does not count.
struct CanaryResult {
  int64_t steps = 0;             // steps done
  std::string device;            // "NVIDIA H200"
  double tokens_per_second = 0;  // over all ranks
  double step_seconds = 0;       // mean of a step, without validations and checkpoints
  int64_t memory_bytes = 0;      // largest memory of rank 0
  double loss = 0;               // of the last step, in nats per token
};

// The job that a canary submits: `spec` under the name NAME-canary in an empty out_dir beside the
// job's own, without restarts. Its steps are those of the job, so that preflight judges it as the
// job. `unique` makes the names unique.
v1::JobSpec CanarySpec(v1::JobSpec spec, const std::string& unique);

// Submits the canary, waits until it has done `steps` steps, stops it and deletes its records
// and, if it is on this machine, its folder; that of a canary that fails stays. FailedPrecondition
// with its reason if it ends before; InvalidArgument if preflight refuses it; Cancelled when
// interrupted. The canary is stopped in any case.
absl::StatusOr<CanaryResult> RunCanary(Session& session, const v1::JobSpec& spec, int64_t steps);

// "20 steps on NVIDIA H200: 524k tok/s (62 ms a step), memory 1.20 GiB, loss 5.41; all 50,000 steps
// take about 52 min".
std::string CanaryText(const CanaryResult& result, const v1::JobSpec& spec);

// InvalidArgument if the measured speed is below guard.min_tokens_per_second, so that the guard
// would end the job.
absl::Status CheckCanary(const CanaryResult& result, const v1::JobSpec& spec);

}  // namespace nsa::client
