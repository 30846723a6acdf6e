// Slurm, by its client programs: sbatch, squeue, sacct, scancel (22.05 and later).
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "common/run/command.h"
#include "server/provision/cluster.h"
#include "server/provision/slurm_options.h"

namespace nsa::server {

class Slurm final : public Cluster {
 public:
  // Once `cancelled` is true, programs that run are killed and later calls fail. It is borrowed.
  Slurm(SlurmOptions options, const std::atomic<bool>& cancelled)
      : options_(std::move(options)), cancelled_(cancelled) {}

  // Also writes the scripts and the agents' configurations into the folder of the allocation.
  absl::StatusOr<std::string> Submit(const v1::StoredJob& job) override;
  absl::StatusOr<std::vector<ClusterJob>> List() override;
  // By sacct, if the cluster keeps accounts.
  absl::StatusOr<std::optional<ClusterJob>> Find(const std::string& number) override;
  absl::Status Cancel(const std::vector<std::string>& numbers) override;

 private:
  absl::StatusOr<CommandEnd> Run(const std::string& program, std::vector<std::string> arguments);

  const SlurmOptions options_;
  const std::atomic<bool>& cancelled_;
};

}  // namespace nsa::server
