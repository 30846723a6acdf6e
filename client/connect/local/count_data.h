// Counts what the data files of a job contain, on this machine.
#pragma once

#include "absl/status/statusor.h"
#include "client/connect/interrupt.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::client {

// Reads all data of the job by `program` (nsa-worker), as training does; large files take a while.
// NotFound if the program is not there; InvalidArgument with what it says if it cannot read the
// data; Cancelled when interrupted.
absl::StatusOr<v1::CorpusSummary> CountData(const v1::JobSpec& spec, const std::string& program,
                                            Interrupt* interrupt);

}  // namespace nsa::client
