// The provisioner for Slurm with all that it needs: `provisioners.slurm` of a coordinator.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/run/file_lock.h"
#include "server/provision/provisioner.h"
#include "server/provision/slurm.h"

namespace nsa::server {

class SlurmService {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    AccessStore& access;
    Fleet& fleet;
    const Clock& clock;
    std::function<void()> changed;
  };

  // Takes the shared folder and starts the thread. Null without options. See TakeSharedFolder() for
  // errors.
  static absl::StatusOr<std::unique_ptr<SlurmService>> Start(
      const std::optional<SlurmOptions>& options, Parts parts);
  // Kills the program of Slurm that runs, if any, and ends the thread. Allocations stay.
  ~SlurmService();

 private:
  SlurmService(const SlurmOptions& options, FileLock lock, Parts parts);

  const FileLock lock_;
  std::atomic<bool> cancelled_ = false;
  Slurm slurm_;
  Provisioner provisioner_;
};

}  // namespace nsa::server
