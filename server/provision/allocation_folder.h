// The folders of allocations in a folder that all machines of the cluster share, one for each:
//
//   <shared>/lock                   held by the coordinator that uses the folder
//   <shared>/<allocation id>/owner  the job, how many machines
//     run.sh, agent.sh              what runs in the allocation (slurm_script.h)
//     agent-0.yaml, agent-0.token   configuration and join token of the agent on the first machine
//     agent-0.log, allocation.log   what they print
//
// A folder is made before the cluster manager is asked and removed after everything was given back.
// So it is also the list of what may have to be given back, whatever happened to the coordinator,
// to the job or to its record. Folders have mode 0700 and files 0600. Thread-safe: no state.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/run/file_lock.h"

namespace nsa::server {

struct AllocationOwner {
  std::string job_id;
  int machines = 0;
};

// Makes the shared folder if it does not exist, and locks it. PermissionDenied when others may open
// it or it is another user's; AlreadyExists when another coordinator uses it.
absl::StatusOr<FileLock> TakeSharedFolder(const std::filesystem::path& shared);

// The ids of the allocations that have a folder.
absl::StatusOr<std::vector<std::string>> ListAllocations(const std::filesystem::path& shared);

class AllocationFolder {
 public:
  AllocationFolder(const std::filesystem::path& shared, const std::string& id)
      : path_(shared / id) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path token(int machine) const;

  // OK too if it exists.
  absl::Status Make(const AllocationOwner& owner) const;

  // NotFound when the folder, or what it says, is not there.
  absl::StatusOr<AllocationOwner> Owner() const;

  // Replaces a file in it.
  absl::Status Write(const std::string& name, const std::string& content) const;

  // How old the token of a machine is; InfiniteDuration if there is none.
  absl::Duration TokenAge(int machine) const;
  void RemoveToken(int machine) const;

  // The last lines, human-readable, that the script or an agent printed; empty if there are none.
  std::string LastWords() const;

  // With everything in it.
  absl::Status Remove() const;

 private:
  std::filesystem::path path_;
};

}  // namespace nsa::server
