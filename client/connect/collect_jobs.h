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

// The jobs of the sweeps with this name, newest first: each owner may have one. With `owner`, only
// those of that one.
absl::StatusOr<std::vector<v1::Job>> CollectSweep(Client* client, const std::string& name,
                                                  const std::string& owner = "");

// Adds "team=vision" to the labels that jobs must have. InvalidArgument when it is not KEY=VALUE,
// or when another value of the key is asked for already.
absl::Status AddLabel(const std::string& text, v1::ListJobsRequest* request);

}  // namespace nsa::client
