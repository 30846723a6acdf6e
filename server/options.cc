#include "server/options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/job/data/url_policy.h"
#include "common/rpc/rpc.h"
#include "server/rpc/listener.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr char kDefaultMetrics[] = "127.0.0.1:9464";
constexpr double kRetentionDays = 90;
constexpr double kLongestRetentionDays = 36'500;
constexpr double kLongestPreemptAfterSeconds = 86'400;
constexpr double kLongestHours = 87'600;

fs::path BesideThisProgram(const std::string& name) {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path() / name;
}

absl::Status CheckTimes(const Options& options) {
  if (options.node_unknown < absl::Seconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("node_unknown_seconds: %s (at least 1); heartbeats come every half second",
                        Number(absl::ToDoubleSeconds(options.node_unknown))));
  }
  if (options.node_lost <= options.node_unknown) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "node_lost_seconds: %s (more than node_unknown_seconds, %s); a job must not be restarted "
        "on a short silence",
        Number(absl::ToDoubleSeconds(options.node_lost)),
        Number(absl::ToDoubleSeconds(options.node_unknown))));
  }
  if (options.log_quota_bytes < 64 << 10) {
    return absl::InvalidArgumentError(
        absl::StrFormat("log_quota_bytes: %d (at least 65536); raise it", options.log_quota_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> RetentionOf(double days) {
  // Written so that NaN is refused too.
  if (!(days >= 0 && days <= kLongestRetentionDays)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "job_retention_days: %s (from 0 to %s); 0 keeps the records of jobs for ever", Number(days),
        Number(kLongestRetentionDays)));
  }
  return days * absl::Hours(24);
}

absl::StatusOr<SchedulingPolicy> SchedulingOf(const v1::SchedulingConfig& config) {
  SchedulingPolicy policy{.preempt = config.preempt(),
                          .fair_share_label = config.fair_share_label()};
  if (config.has_preempt_after_seconds()) {
    const double seconds = config.preempt_after_seconds();
    // Written so that NaN is refused too.
    if (!(seconds >= 0 && seconds <= kLongestPreemptAfterSeconds)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("scheduling.preempt_after_seconds: %s (from 0 to %s); a job must have "
                          "time to do some work between two starts",
                          Number(seconds), Number(kLongestPreemptAfterSeconds)));
    }
    policy.preempt_after = absl::Seconds(seconds);
  }
  return policy;
}

absl::StatusOr<double> DefaultHoursOf(const v1::CoordinatorConfig& config) {
  if (!config.default_limits().has_hours()) return 0;
  const double hours = config.default_limits().hours();
  // Written so that NaN is refused too.
  if (hours > 0 && hours <= kLongestHours) return hours;
  return absl::InvalidArgumentError(
      absl::StrFormat("default_limits.hours: %s (above 0, at most %s); correct it", Number(hours),
                      Number(kLongestHours)));
}

absl::Status CheckRoots(const Options& options) {
  for (const fs::path& root : options.allowed_roots) {
    if (root.is_absolute()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("allowed_roots: ", root.string(), " is relative; use an absolute path"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Options> ResolveOptions(const v1::CoordinatorConfig& config) {
  Options options;
  std::error_code error;
  options.state_dir =
      fs::absolute(config.state_dir().empty() ? DefaultStateDir() : config.state_dir(), error)
          .lexically_normal();
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("state_dir: the current folder is gone (",
                                                   error.message(), "); use an absolute path"));
  }
  options.listen_address = config.listen_address();
  options.metrics_address =
      config.has_metrics_address() ? config.metrics_address() : kDefaultMetrics;
  options.local_agent = config.has_local_agent() ? config.local_agent() : true;
  options.agent_program = config.agent_program().empty() ? BesideThisProgram("nsa-agent")
                                                         : fs::path(config.agent_program());
  for (const std::string& root : config.allowed_roots()) {
    options.allowed_roots.push_back(fs::path(root).lexically_normal());
  }
  if (options.allowed_roots.empty()) options.allowed_roots.emplace_back("/");
  options.allowed_urls = {config.allowed_urls().begin(), config.allowed_urls().end()};
  if (options.allowed_urls.empty()) options.allowed_urls = DefaultAllowedUrls();
  NSA_ASSIGN_OR_RETURN(const UrlPolicy policy, UrlPolicy::Make(options.allowed_urls));
  NSA_ASSIGN_OR_RETURN(options.notices, ResolveNotices(config, policy));
  if (config.provisioners().has_slurm()) {
    NSA_ASSIGN_OR_RETURN(options.slurm, ResolveSlurm(config));
  }
  options.tls = config.tls();
  options.make_token_file = config.token_file().empty();
  options.token_file =
      options.make_token_file ? options.state_dir / kTokenFileName : fs::path(config.token_file());
  options.node_unknown =
      absl::Seconds(config.has_node_unknown_seconds() ? config.node_unknown_seconds() : 10);
  options.node_lost =
      absl::Seconds(config.has_node_lost_seconds() ? config.node_lost_seconds() : 300);
  options.log_quota_bytes =
      config.has_log_quota_bytes() ? config.log_quota_bytes() : int64_t{256} << 20;
  NSA_ASSIGN_OR_RETURN(
      options.job_retention,
      RetentionOf(config.has_job_retention_days() ? config.job_retention_days() : kRetentionDays));
  options.layer_series = config.has_layer_series() ? config.layer_series() : true;
  NSA_ASSIGN_OR_RETURN(options.scheduling, SchedulingOf(config.scheduling()));
  NSA_ASSIGN_OR_RETURN(options.scheduling.quotas, Quotas::Make(config.quotas()));
  NSA_ASSIGN_OR_RETURN(options.default_hours, DefaultHoursOf(config));
  NSA_RETURN_IF_ERROR(CheckTimes(options));
  NSA_RETURN_IF_ERROR(CheckRoots(options));
  for (const auto& [what, address] : {std::pair("listen_address", options.listen_address),
                                      std::pair("metrics_address", options.metrics_address)}) {
    if (!address.empty()) NSA_RETURN_IF_ERROR(ParseHostPort(what, address).status());
  }
  NSA_RETURN_IF_ERROR(CheckTls(options.tls));
  NSA_RETURN_IF_ERROR(
      CheckExposure("listen_address", options.listen_address, options.tls, config.token_file()));
  NSA_RETURN_IF_ERROR(
      CheckExposure("metrics_address", options.metrics_address, options.tls, config.token_file()));
  return options;
}

}  // namespace nsa::server
