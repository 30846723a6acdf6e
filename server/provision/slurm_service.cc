#include "server/provision/slurm_service.h"

#include <utility>

#include "common/base/status.h"

namespace nsa::server {

absl::StatusOr<std::unique_ptr<SlurmService>> SlurmService::Start(
    const std::optional<SlurmOptions>& options, Parts parts) {
  if (!options.has_value()) return nullptr;
  absl::StatusOr<FileLock> lock = TakeSharedFolder(options->shared_dir);
  if (!lock.ok()) return Annotate(lock.status(), "provisioners.slurm");
  std::unique_ptr<SlurmService> service(
      new SlurmService(*options, *std::move(lock), std::move(parts)));
  service->provisioner_.Start();
  return service;
}

SlurmService::SlurmService(const SlurmOptions& options, FileLock lock, Parts parts)
    : lock_(std::move(lock)),
      slurm_(options, cancelled_),
      provisioner_(Provisioner::Parts{.name = kSlurm,
                                      .shared_dir = options.shared_dir,
                                      .cluster = slurm_,
                                      .store = parts.store,
                                      .access = parts.access,
                                      .fleet = parts.fleet,
                                      .clock = parts.clock,
                                      .changed = std::move(parts.changed)}) {}

SlurmService::~SlurmService() {
  cancelled_ = true;
  provisioner_.Stop();
}

}  // namespace nsa::server
