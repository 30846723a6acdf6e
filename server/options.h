// The configuration with every default filled in, and checked.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/config.pb.h"
#include "server/decide/scheduler.h"
#include "server/notice/notice.h"
#include "server/provision/slurm_options.h"

namespace nsa::server {

struct Options {
  std::filesystem::path state_dir;  // absolute
  std::string listen_address;       // empty: no TCP, only the unix socket
  std::string metrics_address;      // empty: none
  bool local_agent = true;
  std::filesystem::path agent_program;
  std::vector<std::filesystem::path> allowed_roots;
  std::vector<std::string> allowed_urls;  // common/job/data/url_policy.h
  NoticeOptions notices;
  std::optional<SlurmOptions> slurm;
  v1::TlsConfig tls;
  std::filesystem::path token_file;
  bool make_token_file = false;  // token_file is the default one, made when it does not exist
  absl::Duration node_unknown;
  absl::Duration node_lost;
  absl::Duration node_forgotten = absl::Hours(1);  // not configurable
  int64_t log_quota_bytes = 0;
  absl::Duration job_retention;  // zero: for ever
  double default_hours = 0;      // limits.hours of jobs that come without it; 0: none
  bool layer_series = true;      // in /metrics
  SchedulingPolicy scheduling;
  // The server pings each client every `ping_every`. A client that does not answer within
  // `ping_timeout` counts as gone. So the streams of a host that has vanished end after the sum of
  // both. Not configurable: clients use the same numbers (common/rpc/rpc.cc).
  absl::Duration ping_every = absl::Seconds(60);
  absl::Duration ping_timeout = absl::Seconds(20);

  // What jobs may name in resources.provisioner.
  std::vector<std::string> provisioners() const {
    return slurm.has_value() ? std::vector<std::string>{kSlurm} : std::vector<std::string>();
  }

  std::filesystem::path unix_socket() const { return state_dir / "coordinator.sock"; }
};

// InvalidArgument or FailedPrecondition with the field, the value and what to do.
absl::StatusOr<Options> ResolveOptions(const v1::CoordinatorConfig& config);

}  // namespace nsa::server
