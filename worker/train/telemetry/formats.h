// How records are formatted in the files of out_dir. All functions are pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "nsa/v1/telemetry.pb.h"
#include "worker/train/telemetry/tensorboard.h"

namespace nsa::train {

// The tables whose columns are quantities of common/record/quantities.h: one row per logged step
// (training.csv), per validation (val.csv), per layer with a selection (k_stats.csv) and per layer
// of an audited step (attention_audit.csv).
enum class Csv : uint8_t { kTraining, kVal, kSelection, kAudit };

// First lines, with '\n'.
std::string HeaderOf(Csv table);
extern const char kFallbackHeader[];  // fallback_counters.csv: one row per fallback, then "total"
extern const char kSourcesHeader[];   // sources.csv: one row per source of data.mix
extern const char kValSetsHeader[];   // val_sets.csv: one row per set of data.val

// In order of their names; the order of a map of protobuf differs between processes.
std::map<std::string, int64_t> FallbacksOf(const v1::StepRecord& step);

// The rows of a record, each with '\n'.
std::string TrainingRow(const v1::StepRecord& step, double unix_seconds);
std::string ValRow(const v1::EvalRecord& eval, double unix_seconds);
std::string FallbackRows(const v1::StepRecord& step);
std::string SelectionRows(const v1::StepRecord& step);
std::string AuditRows(const v1::StepRecord& step, double unix_seconds);   // empty without an audit
std::string SourceRows(const v1::StepRecord& step, double unix_seconds);  // empty without data.mix
// Empty without data.val. `tokens_are_bytes`: a loss per token is one per byte, too.
std::string ValSetRows(const v1::EvalRecord& eval, bool tokens_are_bytes, double unix_seconds);

// TensorBoard scalars. Of a step: train/, memory/, and over the layers gate/ and selection/ (means,
// or as Quantity::keep says); with data.mix also source/, the loss of each source. Of a validation:
// val/, and val_set/ for each set of data.val.
Scalars ScalarsOf(const v1::StepRecord& step);
Scalars ScalarsOf(const v1::EvalRecord& eval);

// A line of samples.jsonl with '\n': step, prompt, text, tokens, seconds, unix_seconds; error where
// there is no text.
std::string SampleLine(const v1::SampleRecord& sample, double unix_seconds);

// A line of heartbeat_rank{r}.jsonl with '\n'. Common fields: ts (seconds since 1970), iso, pid,
// rank, step, msg; memory as mem_allocated_mib / _gib and mem_reserved_mib / _gib (MiB = 2^20, GiB
// = 2^30 bytes). `step` is the last step done. The values of `msg`, with their other fields:
//   boot        the start: parameters, device, resumed_from
//   progress    a logged step: the quantities of a step, fallbacks, layers with theirs
//   beat        a step that is not logged: those with Quantity::beat
//   eval        a validation: loss, and with data.val sets (name to loss)
//   sample      tokens, seconds, error; not the text
//   checkpoint  path, error, stall_seconds, write_seconds
//   event       reason, text
//   end         reason, text
std::string HeartbeatLine(const v1::WorkerRecord& record, bool logged, int64_t step, int32_t rank);

// A line for the log, without '\n'; empty for records that are not logged.
std::string LogLine(const v1::WorkerRecord& record, int64_t steps);

}  // namespace nsa::train
