// A cluster manager as the provisioner uses it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/allocation/allocation.h"

namespace nsa::server {

// Used by one thread. Calls may take as long as the cluster manager's programs need, with a limit.
class Cluster {
 public:
  virtual ~Cluster() = default;

  // Asks for the machines of the job's allocation, under the name ClusterName(). Returns the
  // cluster manager's number of the request. InvalidArgument when it refuses this job, with its
  // answer. Any other error: nobody knows whether it was asked; its listing shows it.
  virtual absl::StatusOr<std::string> Submit(const v1::StoredJob& job) = 0;

  // The user's jobs whose names are those of allocations, also those that ended lately.
  virtual absl::StatusOr<std::vector<ClusterJob>> List() = 0;

  // A job that the listing no longer has. Nothing if the cluster manager does not know it.
  virtual absl::StatusOr<std::optional<ClusterJob>> Find(const std::string& number) = 0;

  virtual absl::Status Cancel(const std::vector<std::string>& numbers) = 0;
};

}  // namespace nsa::server
