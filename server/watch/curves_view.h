// The answer to GetCurves: what the page draws of a job, as columns.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/store/job_store.h"

namespace nsa::server {

// At most so many validations, starts and failed checkpoints are sent, and so many bytes of
// records: less than 6 MiB altogether.
inline constexpr size_t kValidations = 65'536;
inline constexpr size_t kMarks = 1'000;
inline constexpr size_t kMarkBytes = 2 << 20;

// The curves of the job with this id. NotFound; InvalidArgument for a column that there is not and
// for numbers out of their limits.
absl::StatusOr<v1::GetCurvesResponse> CurvesOf(JobStore& store, const std::string& job_id,
                                               const v1::GetCurvesRequest& request);

}  // namespace nsa::server
