// Computes a job's progress from its records. Pure.
#pragma once

#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::server {

// Folds one record of rank 0 into `progress`. `train` is the job's TrainSpec. `last_step` is the
// step after which the job ends: train.steps, or an earlier one when a stop at a step is in force.
// Throughput is an exponential mean over about 20 steps. The estimated time to the end is computed
// from it, plus the remaining validations, each assumed to take as long as the last one. The
// estimate is negative while there is no throughput. Steps that are repeated after a restart add
// nothing to productive_seconds.
void Fold(const v1::WorkerRecord& record, const v1::TrainSpec& train, int64_t last_step,
          v1::JobProgress* progress);

// Adds what the record says of the sources of data.mix and of the sets of data.val. Others than
// those of `data` are not remembered. Call it before Fold(), which counts the step: rows of a step
// that is repeated are counted once.
void FoldData(const v1::WorkerRecord& record, const v1::DataSpec& data, v1::JobProgress* progress);

// Adds the record to what `progress` remembers to judge the health of the run
// (common/estimate/health.h). `spec` is the job's.
void FoldHealth(const v1::WorkerRecord& record, const v1::JobSpec& spec, v1::JobProgress* progress);

// The step at which a job ends: train.steps, or an earlier stop.
int64_t LastStep(const v1::JobSpec& spec, const v1::StopRequest& stop);

}  // namespace nsa::server
