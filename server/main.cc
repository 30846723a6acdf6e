// nsa-coordinator: takes jobs, keeps them alive, shows them.
//
// Exit codes: 0 drained after SIGTERM or SIGINT (workers keep running), 1 failed, 2 bad usage or
// configuration, 3 the store is damaged, 4 a port is taken, 5 another coordinator holds the state
// folder, a newer version wrote the store or an address is not allowed, 6 the server can no longer
// be reached (start it again). With --test-notice: 0 delivered, 1 not delivered, 2 bad usage. With
// --backup and --restore: 0 done, 1 failed, 2 bad usage, 3 the store or the backup is damaged, 5 a
// coordinator runs or the folder is taken.
//
// SIGHUP reads the configuration again, with all files that it names, and starts anew with it in
// the same process. A configuration that is refused changes nothing.
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clean_text.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "common/job/load.h"
#include "common/rpc/rpc.h"
#include "google/protobuf/stubs/logging.h"
#include "server/backup/backup.h"
#include "server/notice/try_notice.h"
#include "server/server.h"
#include "server/service_manager.h"

namespace nsa::server {
namespace {

struct Flags {
  std::string config;
  std::string state_dir;
  std::string listen;
  std::string metrics;
  std::string log_level = "info";
  std::string test_notice;
  std::string backup;
  std::string restore;
};

// Reads the configuration.
using ReadOptions = std::function<absl::StatusOr<Options>()>;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "nsa-coordinator: %s\n", CleanText(std::string(status.message())).c_str());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return 2;
    case absl::StatusCode::kDataLoss:
      return 3;
    case absl::StatusCode::kUnavailable:
      return 4;
    case absl::StatusCode::kFailedPrecondition:
      return 5;
    default:
      return 1;
  }
}

absl::StatusOr<Options> OptionsFrom(const CLI::App& app, const Flags& flags) {
  v1::CoordinatorConfig config;
  if (!flags.config.empty()) {
    const auto loaded = LoadYamlFile(flags.config, &config);
    if (!loaded.ok()) return loaded.status();
  }
  if (!flags.state_dir.empty()) config.set_state_dir(flags.state_dir);
  if (app.count("--listen") > 0) config.set_listen_address(flags.listen);
  if (app.count("--metrics") > 0) config.set_metrics_address(flags.metrics);
  return ResolveOptions(config);
}

// Each connection uses a file descriptor, and gRPC stops accepting connections once they run out.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string AndTcp(const Server& server) {
  return server.listen_address().empty() ? "" : " and " + server.listen_address();
}

// The C library would keep what large messages have taken: it raises both thresholds to 32 and
// 64 MiB by itself, for each of its heaps.
void GiveMemoryBack() {
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 256 << 10);
}

// Waits for one of the signals. Meanwhile free memory between what is in use goes back, too.
int WaitFor(const sigset_t& signals) {
  constexpr timespec kEvery{.tv_sec = 5, .tv_nsec = 0};
  while (true) {
    const int signal = sigtimedwait(&signals, nullptr, &kEvery);
    if (signal > 0) return signal;
    malloc_trim(0);
  }
}

// Blocked before the first thread starts, so that only main receives them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Says what a configuration that was read again is refused for, and goes on.
std::optional<Options> Reread(const ReadOptions& read) {
  auto options = read();
  if (options.ok()) return *std::move(options);
  spdlog::error("got HUP: the configuration is refused and nothing changes: {}",
                std::string(options.status().message()));
  return std::nullopt;
}

// Waits until the server has to end. Returns the options to start again with, if it has to.
std::optional<Options> WaitForEnd(const sigset_t& signals, bool terminal, const ReadOptions& read) {
  while (true) {
    const int signal = WaitFor(signals);
    // The hangup of the terminal that it was started from.
    if (signal != SIGHUP || terminal) {
      NotifyServiceManager("STOPPING=1");
      spdlog::info("got {}: draining; workers keep running", sigabbrev_np(signal));
      return std::nullopt;
    }
    if (auto options = Reread(read)) {
      NotifyServiceManager("RELOADING=1");
      spdlog::info("got HUP: starting anew with the configuration; workers keep running");
      return options;
    }
  }
}

// Runs the server until a signal ends it; `next` then has the options to start again with, if it
// has to.
int RunOnce(const Options& options, const sigset_t& signals, bool terminal, const ReadOptions& read,
            std::optional<Options>* next) {
  const RealClock clock;
  std::atomic<bool> unreachable = false;
  auto server = Server::Start(options, clock, [&unreachable] {
    unreachable = true;
    kill(getpid(), SIGTERM);
  });
  if (!server.ok()) return Fail(server.status());
  const std::string http = (*server)->metrics_address();
  spdlog::info("nsa-coordinator {} ({}): state in {},{} gRPC on {}{}, metrics on {}", kVersion,
               kRevision, options.state_dir.string(),
               http.empty() ? "" : absl::StrCat(" page on http://", http, "/,"),
               options.unix_socket().string(), AndTcp(**server), http);
  NotifyServiceManager("READY=1");
  *next = WaitForEnd(signals, terminal, read);
  (*server)->Drain(absl::Seconds(unreachable ? 0 : 8));
  return unreachable ? 6 : 0;
}

int Run(Options options, const ReadOptions& read) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  const sigset_t signals = BlockSignals();
  umask(077);
  GiveMemoryBack();
  RaiseDescriptorLimit();
  SilenceGrpc();
  // Otherwise every request that is no message writes a line into the log, before its caller is
  // known.
  google::protobuf::SetLogHandler(nullptr);
  while (true) {
    std::optional<Options> next;
    const int code = RunOnce(options, signals, terminal, read, &next);
    if (code != 0 || !next.has_value()) return code;
    options = *std::move(next);
  }
}

std::string SizeText(const BackupSize& size) {
  return absl::StrCat(size.files, size.files == 1 ? " file, " : " files, ", size.bytes, " bytes");
}

int RunBackup(const Options& options, const std::string& folder) {
  umask(077);
  const auto size = BackUp(options.state_dir, folder, absl::Now());
  if (!size.ok()) return Fail(size.status());
  std::printf("backup of %s in %s: %s\n", options.state_dir.c_str(), folder.c_str(),
              SizeText(*size).c_str());
  return 0;
}

int RunRestore(const Options& options, const std::string& folder) {
  umask(077);
  const auto restored = Restore(folder, options.state_dir, absl::Now());
  if (!restored.ok()) return Fail(restored.status());
  std::printf("restored %s from %s: %s\n", options.state_dir.c_str(), folder.c_str(),
              SizeText(restored->size).c_str());
  if (!restored->replaced.empty()) {
    std::printf("what was there before is in %s\n", restored->replaced.c_str());
  }
  return 0;
}

// --test-notice: 0 delivered, 1 not delivered, 2 no such notice.
int Try(const Options& options, const std::string& notice) {
  const std::string& http = options.metrics_address;
  const auto said =
      TryNotice(options.notices, notice, http.empty() ? "" : "http://" + http + "/", RealClock());
  if (said.ok()) {
    std::printf("%s\n", said->c_str());
    return 0;
  }
  const int code = Fail(said.status());
  return code == 2 ? 2 : 1;
}

}  // namespace
}  // namespace nsa::server

int main(int argc, char** argv) {
  nsa::server::Flags flags;
  CLI::App app("nsa-coordinator: takes training jobs, keeps them alive, shows them");
  app.set_version_flag("--version", std::string(nsa::kVersion) + " (" + nsa::kRevision + ")");
  app.add_option("--config", flags.config, "configs/coordinator.yaml; without it all defaults");
  app.add_option("--state-dir", flags.state_dir,
                 "store, logs and sockets [$NSA_STATE_DIR, else ~/.local/state/nsa]");
  app.add_option("--listen", flags.listen, "gRPC over TCP, e.g. 127.0.0.1:50951 [none]");
  app.add_option("--metrics", flags.metrics,
                 "HTTP of the page and /metrics [127.0.0.1:9464]; \"\" for none");
  app.add_option("--test-notice", flags.test_notice,
                 "send a sample through this notice of the configuration, say what the receiver "
                 "answered, and exit");
  app.add_option(
      "--backup", flags.backup,
      "copy the state folder to this new folder, also while a coordinator runs, and exit");
  app.add_option("--restore", flags.restore,
                 "put a backup in the place of the state folder's content, and exit");
  app.add_option("--log-level", flags.log_level,
                 "trace, debug, info, warn, error, critical or off");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status log = nsa::InitLog("coordinator", flags.log_level);
  if (!log.ok()) return nsa::server::Fail(log);
  const auto read = [&app, &flags] { return nsa::server::OptionsFrom(app, flags); };
  const auto options = read();
  if (!options.ok()) return nsa::server::Fail(options.status());
  if (app.count("--test-notice") > 0) return nsa::server::Try(*options, flags.test_notice);
  if (app.count("--backup") > 0) return nsa::server::RunBackup(*options, flags.backup);
  if (app.count("--restore") > 0) return nsa::server::RunRestore(*options, flags.restore);
  return nsa::server::Run(*options, read);
}
