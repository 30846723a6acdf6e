// A job in words: what list, describe, watch and submit share.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "client/connect/session.h"
#include "client/exit_code.h"
#include "client/show/table.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// "RUNNING"; "unknown(17)" for a state of a newer coordinator.
std::string StateName(v1::Job::State state);
Colour StateColour(v1::Job::State state);

// SUCCEEDED, FAILED, STOPPED.
bool HasEnded(v1::Job::State state);
// The same, and for a state of a newer coordinator: whether the job says when it ended.
bool HasEnded(const v1::Job& job);

// "375/1000"; "-" before the first step is known.
std::string StepText(const v1::JobProgress& progress);

// Share of the steps done, in [0, 1].
double ShareDone(const v1::JobProgress& progress);

// "stopping after step 500", "stopping after this step", "stopping now"; empty without a stop.
std::string StopText(const v1::StopRequest& stop);

// When the next start is: "in 42s", "due"; empty when the job does not wait for one.
std::string NextStartText(const v1::Job& job, absl::Time now);

// "CUDA_OOM: out of memory on rank 1"; whatever of reason and message there is.
std::string ReasonText(const v1::Job& job);

// "rank 0: /out/training.csv: No space left on device; …": why what the ranks report is not all
// written; empty when it is.
std::string TelemetryText(const v1::Job& job);

// "demo (j3k5…)".
std::string Title(const v1::Job& job);

// What to type next, a line each with two spaces in front, for a job that runs or has ended.
std::string NextCommands(const v1::Job& job);

// What everything that runs to a job's end exits with: kOk for SUCCEEDED and STOPPED, kFailed for
// FAILED and for an end that this version does not know.
ExitCode EndCode(const v1::Job& job);

}  // namespace nsa::client
