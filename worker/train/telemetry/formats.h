// How records look in the files of out_dir: pure.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/v1/telemetry.pb.h"
#include "worker/train/telemetry/tensorboard.h"

namespace nsa {

// First lines, with '\n'.
extern const char kTrainingHeader[];   // training.csv: one row a logged step
extern const char kValHeader[];        // val.csv: one row a validation
extern const char kFallbackHeader[];   // fallback_counters.csv: a row a fallback and one "total"
extern const char kSelectionHeader[];  // k_stats.csv: a row a layer

// Rows of a record, each with '\n'.
std::string TrainingRow(const v1::StepRecord& step, double unix_seconds);
std::string ValRow(const v1::EvalRecord& eval, double unix_seconds);
std::string FallbackRows(const v1::StepRecord& step);
std::string SelectionRows(const v1::StepRecord& step);

// TensorBoard scalars: train/, memory/, gate/, selection/ (means over layers; the worst of
// collapse).
Scalars ScalarsOf(const v1::StepRecord& step);
Scalars ScalarsOf(const v1::EvalRecord& eval);

// A line of heartbeat_rank{r}.jsonl with '\n'. Common fields: ts (seconds since 1970), iso, pid,
// rank, step, msg; memory as mem_allocated_mib / _gib and mem_reserved_mib / _gib (MiB = 2^20, GiB
// = 2^30 bytes). `msg` is
//   boot        parameters, device, resumed_from
//   progress    a logged step: loss, lr, grad_norm, toks_per_s, dt_fetch_s, step_seconds,
//   data_source,
//               total_tokens, fallbacks, layers (gate and selection statistics)
//   beat        another step: loss, toks_per_s
//   eval        loss        checkpoint  path or error       event  reason, text       end  outcome
// `step` is the last step done.
std::string HeartbeatLine(const v1::WorkerRecord& record, bool logged, int64_t step, int32_t rank);

// A line for the log, without '\n'; empty for records that are not worth one.
std::string LogLine(const v1::WorkerRecord& record, int64_t steps);

// "jsonl": a DataSource as a job file spells it.
std::string SourceName(v1::DataSource source);

}  // namespace nsa
