// Lists jobs over all pages.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/client.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// The jobs that `request` asks for, newest first, up to `limit` (0: all). The result's
// next_page_token says that there are more.
absl::StatusOr<v1::ListJobsResponse> CollectJobs(Client* client, v1::ListJobsRequest request,
                                                 int limit);

// The jobs of a sweep, newest first.
absl::StatusOr<std::vector<v1::Job>> CollectSweep(Client* client, const std::string& name);

}  // namespace nsa::client
