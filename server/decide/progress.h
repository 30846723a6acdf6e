// From records to how far a job is. Pure.
#pragma once

#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::server {

// Folds one record of rank 0 into `progress`. `train` is the job's; `last_step` is the one it ends
// after, earlier than train.steps when a stop at a step is in force.
// Throughput is an exponential mean over about 20 steps; the estimate to the end uses it, adds the
// validations that are left, each as long as the last, and is negative while there is no
// throughput. What is done again after a restart adds nothing to productive_seconds.
void Fold(const v1::WorkerRecord& record, const v1::TrainSpec& train, int64_t last_step,
          v1::JobProgress* progress);

// The step at which a job ends: train.steps, or an earlier stop.
int64_t LastStep(const v1::JobSpec& spec, const v1::StopRequest& stop);

}  // namespace nsa::server
