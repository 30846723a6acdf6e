// nsa-agent, one per machine: starts, watches, dumps and ends the workers that the coordinator asks
// for.
//
// Exit codes: 0 ended by SIGTERM or SIGINT (workers keep running) or because its allocation is
// over, 1 failed, 2 usage or configuration (another start fails in the same way), 6 the state
// folder is in use by another agent, 7 the coordinator accepts connections but answers on none
// (start the agent again; workers keep running).
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>

#include "CLI/CLI.hpp"
#include "common/base/clean_text.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "common/job/load.h"
#include "common/rpc/rpc.h"
#include "spdlog/spdlog.h"
#include "worker/agent/agent.h"
#include "worker/agent/dump/stack_dump.h"
#include "worker/agent/options.h"
#include "worker/agent/user/exec_as.h"

namespace nsa::agent {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kInUse = 6;
constexpr int kLost = 7;

struct Flags {
  std::string config;
  std::string state_dir;
  std::string coordinator;
  std::string node_name;
  std::string worker_program;
  std::string log_level = "info";
  StackDumpOptions dump;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "nsa-agent: %s\n", CleanText(std::string(status.message())).c_str());
  switch (status.code()) {
    case absl::StatusCode::kAlreadyExists:
      return kInUse;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kUsage;
    default:
      return kFailed;
  }
}

// The configuration file's values, overridden by flags.
absl::StatusOr<AgentOptions> OptionsFrom(const Flags& flags) {
  v1::AgentConfig config;
  if (!flags.config.empty()) {
    const auto loaded = LoadYamlFile(flags.config, &config);
    if (!loaded.ok()) return loaded.status();
  }
  if (!flags.state_dir.empty()) config.set_state_dir(flags.state_dir);
  if (!flags.coordinator.empty()) config.set_coordinator_address(flags.coordinator);
  if (!flags.node_name.empty()) config.set_node_name(flags.node_name);
  if (!flags.worker_program.empty()) config.set_worker_program(flags.worker_program);
  return ResolveOptions(config);
}

int RunAgent(const Flags& flags) {
  // Blocked before the first thread starts, so that only sigwait() below receives them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // The reader of stderr may be gone.
  signal(SIGXFSZ, SIG_IGN);  // A limit of file sizes is an error of the write.

  // For the workers, which inherit it: no program that they might start gains privileges.
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  SilenceGrpc();

  if (const absl::Status log = InitLog("agent", flags.log_level); !log.ok()) return Fail(log);
  const absl::StatusOr<AgentOptions> options = OptionsFrom(flags);
  if (!options.ok()) {
    const int code = Fail(options.status());
    // Whatever is wrong; but an interface or a route that is missing may come up later.
    return absl::IsUnavailable(options.status()) ? code : kUsage;
  }
  std::atomic<bool> lost = false;
  std::atomic<bool> ended = false;
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(*options, [&](Agent::End why) {
    lost = why == Agent::End::kLost;
    ended = true;
    kill(getpid(), SIGTERM);
  });
  if (!agent.ok()) return Fail(agent.status());
  spdlog::info("nsa-agent {} on {}: state in {}, coordinator {}", FullVersion(), options->node_name,
               options->state_dir.string(), options->coordinator_address);
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  // The machine is being taken: its workers do not keep running.
  while (!options->allocation.empty() && !ended) {
    spdlog::info("got {}: asking the workers to stop", sigabbrev_np(signal_number));
    (*agent)->Leave();
    sigwait(&signals, &signal_number);
  }
  spdlog::info("got {}: ending; workers keep running", sigabbrev_np(signal_number));
  agent->reset();
  return lost ? kLost : 0;
}

int RunDump(const Flags& flags) {
  const absl::Status status = DumpStacks(flags.dump);
  if (!status.ok()) std::fprintf(stderr, "dump: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : kFailed;
}

}  // namespace
}  // namespace nsa::agent

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == nsa::agent::kExecAs) {
    return nsa::agent::ExecAsMain(argc, argv);
  }
  nsa::agent::Flags flags;
  CLI::App app{"nsa-agent: starts, watches, dumps and ends the workers of one machine"};
  app.set_version_flag("--version", nsa::FullVersion());
  app.add_option("--config", flags.config, "configuration file (YAML, see configs/agent.yaml)");
  app.add_option("--state-dir", flags.state_dir, "folder for run folders and the lock");
  app.add_option("--coordinator", flags.coordinator, "address: unix:PATH or HOST:PORT");
  app.add_option("--node-name", flags.node_name, "name of this machine; default its host name");
  app.add_option("--worker-program", flags.worker_program,
                 "CPU worker; default nsa-worker beside this program");
  app.add_option("--log-level", flags.log_level,
                 "trace, debug, info, warn, error, critical or off");
  CLI::App* dump =
      app.add_subcommand("dump", "print the C++ stacks of a process, which keeps running");
  dump->add_option("--pid", flags.dump.pid, "process")->required();
  dump->add_option("--start-ticks", flags.dump.start_ticks,
                   "its start time (field 22 of /proc/PID/stat), to detect a reused pid");
  dump->add_option("--status", flags.dump.status_page, "status page of the process, printed first");
  dump->add_option("--output", flags.dump.output, "output file; default standard output");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : nsa::agent::kUsage;
  }
  return *dump ? nsa::agent::RunDump(flags) : nsa::agent::RunAgent(flags);
}
