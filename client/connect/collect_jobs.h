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

// Which jobs a command is about: the flags --state and --label (Options::Choose()). The same for
// all commands that have them.
struct JobFilter {
  std::vector<std::string> states;  // one of these: "running", "active" (not ended)
  std::vector<std::string> labels;  // "KEY=VALUE": all of these

  bool empty() const { return states.empty() && labels.empty(); }
};

// The request for the jobs of a filter; an empty filter means all. InvalidArgument for an unknown
// state, for a label that is not KEY=VALUE, and for two values of one key.
absl::StatusOr<v1::ListJobsRequest> RequestOf(const JobFilter& filter);

// Whether a job has all the labels of the request. Says nothing of its state.
bool HasLabels(const v1::Job& job, const v1::ListJobsRequest& request);

}  // namespace nsa::client
