// What each stream sends. A source reads from the stores and keeps its reader's position.
#pragma once

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/act/job_control.h"
#include "server/rpc/stream.h"
#include "server/store/job_store.h"
#include "server/store/log_store.h"

namespace nsa::server {

// The job as it is now, then after every visible change, until it has ended.
Source<v1::WatchJobResponse> WatchJobSource(const JobStore& store, const JobControl& control,
                                            std::string job_id);

// Events after a position. With `follow`, continues until the job has ended (of all jobs: for
// ever). With `only`, of this owner's jobs.
Source<v1::WatchEventsResponse> EventSource(const JobStore& store,
                                            const v1::WatchEventsRequest& request,
                                            std::string job_id, const std::string& only = "");

// NotFound unless the job has this rank. A negative rank means all ranks.
absl::Status CheckRank(int32_t rank, const v1::Job& job);

// Records after a position, or the last `tail` ones. With `follow`, continues until the job has
// ended.
absl::StatusOr<Source<v1::WatchRecordsResponse>> RecordSource(
    const JobStore& store, const v1::WatchRecordsRequest& request, std::string job_id);

// Log lines of one rank, or of all ranks in turn. With `follow`, continues until the job has ended.
// InvalidArgument for more than 100,000 tail_lines.
absl::StatusOr<Source<v1::StreamLogsResponse>> LogSource(const JobStore& store, LogStore* logs,
                                                         const v1::StreamLogsRequest& request,
                                                         std::string job_id);

}  // namespace nsa::server
