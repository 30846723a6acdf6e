// Texts about a job, shared by list, describe, watch, submit and others.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/exit_code.h"
#include "client/show/table.h"
#include "nsa/v1/job_health.pb.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::client {

// "RUNNING", in formats for programs and in filters; "unknown(17)" for a state of a newer
// coordinator. Texts say StateTitle().
std::string StateName(v1::Job::State state);
Colour StateColour(v1::Job::State state);
// The same, but what is wrong with a run that trains, or that did all its steps, shows: one that
// has diverged is never green. What is muted does not show.
Colour StateColour(const v1::Job& job);

// SUCCEEDED, FAILED, STOPPED.
bool HasEnded(v1::Job::State state);
// The same; in a state that this version does not know, true when the job has an end time.
bool HasEnded(const v1::Job& job);

// "375/1000"; "-" before the first step is known.
std::string StepText(const v1::JobProgress& progress);

// Share of the steps done, in [0, 1].
double ShareDone(const v1::JobProgress& progress);

// "stopping after step 500", "stopping after the step in progress", "stopping now"; empty without a
// stop.
std::string StopText(const v1::StopRequest& stop);

// Time until the next start: "in 42 s", "due"; empty when the job does not wait for one.
std::string NextStartText(const v1::Job& job, absl::Time now);

// "CUDA_OOM: out of memory on rank 1"; reason or message may be missing.
std::string ReasonText(const v1::Job& job);

// RankCount() of the job: "4", or "2 of 4" while it runs with fewer ranks than it asks for
// (restart.min_ranks).
std::string RanksText(const v1::Job& job);

// Whether it does.
bool HasFewerRanks(const v1::Job& job);

// "rank 0: /out/training.csv: No space left on device; …": why some telemetry is not written; empty
// when all of it is.
std::string TelemetryText(const v1::Job& job);

// "120 documents (3 copies of validation documents dropped), 1,234,567 tokens, 602 rows an epoch; 5
// documents, 12,345 tokens, 6 rows for validation; 7 rows without a text (null) skipped"; empty
// without a corpus.
std::string CorpusText(const v1::CorpusSummary& corpus);

// A row for each source of data.mix: name, weight, share of the rows so far, epoch, loss and files,
// "-" for what is not known yet. None without a mixture.
std::vector<std::vector<std::string>> SourceRows(const v1::Job& job);

// A row for each set of data.val: name, loss and tokens of its newest validation ("-" before the
// first), and its files.
std::vector<std::vector<std::string>> ValSetRows(const v1::Job& job);

// "cmp 0.31 sel 0.33 win 0.36, lowest entropy 0.92 in layer 3"; empty without a gate.
std::string GatesText(const v1::JobProgress& progress);

// "memory 1.20 GiB, no fallbacks", "memory 1.20 GiB, fallbacks: cuda_graph 3"; empty before the
// first step.
std::string ResourcesText(const v1::JobProgress& progress);

Colour HealthColour(const v1::JobHealth& health);
Colour ProblemColour(const v1::Problem& problem);

// "The run has diverged since step 812 (DIVERGED): loss 8.07 (a uniform guess has 5.55); train.lr:
// 0.01", then "muted" if it is.
std::string ProblemText(const v1::Problem& problem);

// What helps: commands as NextCommands() has them.
std::string RemediesText(const v1::Problem& problem);

// "demo (j3k5…)".
std::string Title(const v1::Job& job);

// Commands to try next in the job's state, one per line, indented by two spaces.
std::string NextCommands(const v1::Job& job);

// Exit code of a command that waits for the job's end: kOk for SUCCEEDED and STOPPED, kFailed for
// FAILED and for an end state that this version does not know.
ExitCode EndCode(const v1::Job& job);

}  // namespace nsa::client
