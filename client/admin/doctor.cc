// nsactl doctor: whether this machine and the coordinator's machines can train, and what to do.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/admin/machine_checks.h"
#include "client/cli.h"
#include "client/connect/endpoint.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/job/load.h"
#include "common/rpc/rpc.h"
#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"
#include "nsa/v1/config.pb.h"

namespace nsa::client {
namespace {

using Level = Check::Level;

struct DoctorFlags {
  std::string config;
  std::vector<std::string> folders;
};

const char* Word(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kFailed:
      return "failed";
  }
  return "?";
}

Colour ColourOf(Level level) {
  if (level == Level::kOk) return Colour::kGood;
  return level == Level::kWarning ? Colour::kWarning : Colour::kBad;
}

// "what: value; what to do" is how errors read.
Check FromError(const std::string& what, const absl::Status& status) {
  const std::string text(status.message());
  const size_t cut = text.rfind("; ");
  if (cut == std::string::npos) return {Level::kFailed, what, text, "see docs/commands.md"};
  return {Level::kFailed, what, text.substr(0, cut), text.substr(cut + 2)};
}

// The coordinator, that it accepts the token, and its machines.
absl::StatusOr<std::vector<Check>> CheckCoordinator(Session& session) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto version,
                       client->Call<v1::GetVersionResponse>(v1::GetVersionRequest()));
  const bool same = version.revision() == kRevision;
  std::vector<Check> checks = {
      {same ? Level::kOk : Level::kWarning, "coordinator",
       absl::StrCat(FullVersion(version.version(), version.revision()), " at ",
                    client->endpoint().address),
       same ? "" : absl::StrCat("nsactl is of revision ", kRevision, "; use those of one bundle")}};
  NSA_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, client->ListNodes());
  for (const v1::Node& node : nodes.nodes()) {
    for (Check& check : CheckNode(node, session.now())) checks.push_back(std::move(check));
  }
  if (nodes.nodes().empty())
    checks.push_back({Level::kFailed, "nodes", "none", "start nsa-agent on one"});
  return checks;
}

void CheckLimits(Session& session, std::vector<Check>* checks) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) checks->push_back(CheckDescriptors(limit));
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) checks->push_back(CheckLockedMemory(limit));
  const auto pattern = ReadWholeFile("/proc/sys/kernel/core_pattern");
  if (getrlimit(RLIMIT_CORE, &limit) == 0 && pattern.ok()) {
    checks->push_back(CheckCoreDumps(limit, *pattern));
  }
  timex clock{};
  const int state = adjtimex(&clock);
  checks->push_back(CheckClock(session.now(), clock, state));
}

// The ports of a coordinator's configuration.
absl::Status CheckPorts(const v1::CoordinatorConfig& config, std::vector<Check>* checks) {
  const auto ask = [&](const char* setting, const std::string& address, bool grpc) {
    if (address.empty()) return absl::OkStatus();
    NSA_ASSIGN_OR_RETURN(const PortUser user,
                         AskPort(address, grpc, config.tls().certificate_file()));
    checks->push_back(CheckPort(setting, address, user));
    return absl::OkStatus();
  };
  NSA_RETURN_IF_ERROR(ask("listen_address", config.listen_address(), true));
  return ask("metrics_address",
             config.has_metrics_address() ? config.metrics_address() : "127.0.0.1:9464", false);
}

// The certificates with which nsactl calls the coordinator, and those of its configuration. A user
// who may not read the latter cannot judge them.
void CheckCertificates(Session& session, const v1::TlsConfig& coordinators,
                       std::vector<Check>* checks) {
  const absl::Time now = session.now();
  const auto endpoint = ResolveEndpoint(session.flags().address, session.flags().context);
  // What is wrong with its own is the reason why the coordinator cannot be called.
  const auto own = ReadTlsFiles(endpoint.ok() ? endpoint->tls : v1::TlsConfig(), now);
  const auto theirs = ReadTlsFiles(coordinators, now);
  for (const auto* files : {&own, &theirs}) {
    if (!files->ok()) continue;
    for (const CertificateEnd& end : (*files)->ends) checks->push_back(CheckCertificate(end, now));
  }
  if (theirs.ok()) return;
  checks->push_back(FromError("certificates", theirs.status()));
  if (absl::IsNotFound(theirs.status())) checks->back().level = Level::kWarning;
}

ExitCode Print(Session& session, const std::vector<Check>& checks) {
  const auto failed = std::ranges::count(checks, Level::kFailed, &Check::level);
  if (session.structured()) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Check& check : checks) {
      list.push_back({{"level", Word(check.level)},
                      {"check", check.what},
                      {"value", check.value},
                      {"fix", check.fix}});
    }
    session.PrintDocument(nlohmann::ordered_json{{"failed", failed}, {"checks", list}});
  } else if (session.flags().format == Format::kName) {
    for (const Check& check : checks) {
      if (check.level != Level::kOk) session.out() << check.what << "\n";
    }
  } else {
    Table table({{"RESULT"}, {"CHECK"}, {"VALUE"}, {"WHAT TO DO"}});
    for (const Check& check : checks) {
      table.Add({{Word(check.level), ColourOf(check.level)},
                 check.what,
                 check.value,
                 check.fix.empty() ? "-" : check.fix});
    }
    session.PrintTable(table);
  }
  return failed > 0 ? ExitCode::kFailed : ExitCode::kOk;
}

absl::StatusOr<ExitCode> Doctor(Session& session, DoctorFlags flags) {
  v1::CoordinatorConfig config;
  if (!flags.config.empty()) NSA_RETURN_IF_ERROR(LoadYamlFile(flags.config, &config).status());
  std::vector<Check> checks;
  const auto coordinator = CheckCoordinator(session);
  if (absl::IsCancelled(coordinator.status())) return coordinator.status();
  if (coordinator.ok()) {
    checks = *coordinator;
  } else {
    checks.push_back(FromError("coordinator", coordinator.status()));
  }
  CheckCertificates(session, config.tls(), &checks);
  NSA_RETURN_IF_ERROR(CheckPorts(config, &checks));
  const std::string state = config.state_dir().empty() ? DefaultStateDir() : config.state_dir();
  checks.push_back(CheckFileSystem(state, NetworkFileSystem(state)));
  flags.folders.insert(flags.folders.begin(), state);
  for (const std::string& folder : flags.folders) {
    for (Check& check : MeasureFolder(folder)) checks.push_back(std::move(check));
  }
  CheckLimits(session, &checks);
  return Print(session, checks);
}

}  // namespace

void AddDoctor(Cli* cli) {
  const auto flags = std::make_shared<DoctorFlags>();
  Options options = cli->Add(
      {.name = "doctor",
       .what = "Check this machine and the coordinator's machines, and say what to do",
       .group = "Service",
       .more = "Of the coordinator: whether it answers and accepts the token; of each of its "
               "machines: heartbeats, driver,\nforward compatibility, the CUDA worker with "
               "cuBLASLt, NCCL, and GPUs with errors, as the agent there found\nthem. Of this "
               "machine: certificates, ports, space and speed of folders, limits of processes, the "
               "clock. Exit code 1\nwhen a check failed.",
       .examples = "nsactl doctor\nnsactl doctor --config /etc/nsa/coordinator.yaml --folder /data",
       .run = [flags](Session& session) { return Doctor(session, *flags); }});
  options.Text("--config", "FILE", &flags->config,
               "Configuration of nsa-coordinator, for its ports and its state folder");
  options.Texts("--folder", "DIR", &flags->folders,
                "A folder for runs and checkpoints; may be repeated. Writes and removes 64 MiB");
}

}  // namespace nsa::client
