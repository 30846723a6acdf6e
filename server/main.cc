// nsa-coordinator: takes jobs, keeps them alive, shows them.
//
// Exit codes: 0 drained after SIGTERM or SIGINT (workers keep running), 1 failed, 2 bad usage or
// configuration, 3 the store is damaged or lost, 4 a port is taken or the store locked, 5 another
// coordinator holds the state folder, a newer version wrote the store or an address is not allowed,
// 6 the server can no longer be reached (start it again). After 2, 3 and 5 another start fails in
// the same way. With --check-config: 0 a start or a reload would use this configuration, else the
// code of that start. With --test-notice: 0 delivered, 1 not delivered, 2 bad usage. With --backup,
// --verify-backup, --restore and --new-store: 0 done, 1 failed, 2 bad usage, 3 the store or the
// backup is damaged, 5 a coordinator runs or the folder is taken.
//
// SIGHUP reads the configuration again, with all files that it names, checks everything (setup.h)
// and starts anew with it in the same process. A configuration that is refused changes nothing.
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clean_text.h"
#include "common/base/file_system.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/utc_text.h"
#include "common/base/version.h"
#include "common/job/load.h"
#include "common/rpc/rpc.h"
#include "google/protobuf/stubs/logging.h"
#include "server/backup/backup.h"
#include "server/backup/rotation.h"
#include "server/notice/try_notice.h"
#include "server/server.h"
#include "server/service_manager.h"
#include "server/setup.h"
#include "server/store/job_store.h"
#include "server/store/state_lock.h"

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
  std::string verify_backup;
  std::string restore;
  int keep = 0;
  bool make_new = false;
  bool check_config = false;
  bool new_store = false;
};

// Reads the configuration and the files that it names.
using Reader = std::function<absl::StatusOr<Setup>()>;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "nsa-coordinator: %s\n", CleanText(std::string(status.message())).c_str());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
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

absl::StatusOr<Setup> ReadAll(const CLI::App& app, const Flags& flags) {
  NSA_ASSIGN_OR_RETURN(Options options, OptionsFrom(app, flags));
  return ReadSetup(std::move(options), absl::Now());
}

// Each connection uses three, and their number is a share of what may be open.
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
  signal(SIGXFSZ, SIG_IGN);  // A limit of file sizes is an error of the write.
  return signals;
}

// What to start anew with in the place of `running`. Says what a configuration is refused for.
std::optional<Setup> Reread(const Reader& read, const Options& running) {
  absl::StatusOr<Setup> next = read();
  const absl::Status status = next.ok() ? CheckReload(next->options, running) : next.status();
  if (status.ok()) return *std::move(next);
  spdlog::error("got HUP: the configuration is refused and nothing changes: {}",
                std::string(status.message()));
  return std::nullopt;
}

// Waits until the server has to end. Returns what to start again with, if it has to.
std::optional<Setup> WaitForEnd(const sigset_t& signals, bool terminal,
                                const std::function<std::optional<Setup>()>& reread) {
  while (true) {
    const int signal = WaitFor(signals);
    // The hangup of the terminal that it was started from.
    if (signal != SIGHUP || terminal) {
      NotifyServiceManager("STOPPING=1");
      spdlog::info("got {}: draining; workers keep running", sigabbrev_np(signal));
      return std::nullopt;
    }
    if (auto next = reread()) {
      NotifyServiceManager("RELOADING=1");
      spdlog::info("got HUP: starting anew with the configuration; workers keep running");
      return next;
    }
  }
}

// Runs the server until a signal ends it, and returns the exit code; `next` then has what to start
// again with, if it has to. An error when the server does not start.
absl::StatusOr<int> RunOnce(const Setup& setup, const sigset_t& signals, bool terminal,
                            const Reader& read, std::optional<Setup>* next) {
  const RealClock clock;
  const Options& options = setup.options;
  std::atomic<bool> unreachable = false;
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                       Server::Start(options, setup.credentials, clock, [&unreachable] {
                         unreachable = true;
                         kill(getpid(), SIGTERM);
                       }));
  if (const auto network = NetworkFileSystem(options.state_dir); !network.empty()) {
    spdlog::warn(
        "state_dir: {} is on {} (SQLite can lose or damage the job store there); put it on a local "
        "disk",
        options.state_dir.string(), network);
  }
  const std::string http = server->metrics_address();
  spdlog::info("nsa-coordinator {}: state in {},{} gRPC on {}{}, metrics on {}", FullVersion(),
               options.state_dir.string(),
               http.empty() ? "" : absl::StrCat(" page on ", server->http_url(), ","),
               options.unix_socket().string(), AndTcp(*server), http);
  NotifyServiceManager("READY=1");
  *next = WaitForEnd(signals, terminal, [&] { return Reread(read, options); });
  server->Drain(absl::Seconds(unreachable ? 0 : 8));
  return unreachable ? 6 : 0;
}

int Run(Setup setup, const Reader& read) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  const sigset_t signals = BlockSignals();
  umask(077);
  GiveMemoryBack();
  RaiseDescriptorLimit();
  // Otherwise every request that is no message writes a line into the log, before its caller is
  // known.
  google::protobuf::SetLogHandler(nullptr);
  std::optional<Setup> before;  // what ran until the last reload
  while (true) {
    std::optional<Setup> next;
    const absl::StatusOr<int> code = RunOnce(setup, signals, terminal, read, &next);
    if (!code.ok() && before.has_value()) {
      spdlog::error("the new configuration does not start: {}; starting with the one before",
                    std::string(code.status().message()));
      setup = *std::exchange(before, std::nullopt);
      continue;
    }
    if (!code.ok()) return Fail(code.status());
    if (*code != 0 || !next.has_value()) return *code;
    before = std::exchange(setup, *std::move(next));
  }
}

// --check-config.
int RunCheck(const Setup& setup) {
  const absl::Status status = CheckAddresses(setup.options);
  if (!status.ok()) return Fail(status);
  for (const CertificateEnd& end : setup.credentials.tls.ends) {
    std::printf("%s: %s %s\n", end.field.c_str(), end.file.c_str(),
                EndText(end, absl::Now()).c_str());
  }
  std::printf("the configuration is good\n");
  return 0;
}

std::string SizeText(const BackupSize& size) {
  return absl::StrCat(size.files, size.files == 1 ? " file, " : " files, ", size.bytes, " bytes");
}

// Notes a backup that was made, for the metric of its age; returns the exit code.
int Note(const Options& options, absl::Time made) {
  const absl::Status noted = NoteBackup(options.state_dir, made);
  return noted.ok() ? 0 : Fail(noted);
}

int RunRotation(const Options& options, const Flags& flags) {
  const absl::Time now = absl::Now();
  const auto rotated = BackUpAndRotate(options.state_dir, flags.backup, flags.keep, now);
  if (!rotated.ok()) return Fail(rotated.status());
  std::printf("backup of %s in %s: %s, verified\n", options.state_dir.c_str(),
              rotated->backup.c_str(), SizeText(rotated->size).c_str());
  for (const std::string& name : rotated->removed) std::printf("removed %s\n", name.c_str());
  return Note(options, now);
}

int RunVerification(const std::string& folder) {
  const auto verified = Verify(folder);
  if (!verified.ok()) return Fail(verified.status());
  std::printf("%s is whole: made on %s by nsa-coordinator %s, %s\n", folder.c_str(),
              UtcText(absl::ToUnixNanos(verified->time)).c_str(), verified->writer.c_str(),
              SizeText(verified->size).c_str());
  return 0;
}

int RunBackup(const Options& options, const Flags& flags) {
  umask(077);
  if (flags.keep != 0) return RunRotation(options, flags);
  const std::string& folder = flags.backup;
  const absl::Time now = absl::Now();
  const auto size = BackUp(options.state_dir, folder, now);
  if (!size.ok()) return Fail(size.status());
  std::printf("backup of %s in %s: %s, verified\n", options.state_dir.c_str(), folder.c_str(),
              SizeText(*size).c_str());
  return Note(options, now);
}

int RunRestore(const Options& options, const Flags& flags) {
  umask(077);
  const auto restored = Restore(flags.restore, options.state_dir, flags.make_new, absl::Now());
  if (!restored.ok()) return Fail(restored.status());
  std::printf("restored %s from %s, written by nsa-coordinator %s: %s\n", options.state_dir.c_str(),
              flags.restore.c_str(), restored->writer.c_str(), SizeText(restored->size).c_str());
  if (!restored->replaced.empty()) {
    std::printf("what was there before is in %s; remove it when the coordinator runs well\n",
                restored->replaced.c_str());
  }
  return 0;
}

int MakeNewStore(const Options& options) {
  umask(077);
  const auto lock = LockStateDir(options.state_dir);
  if (!lock.ok()) return Fail(lock.status());
  const absl::Status made = JobStore::MakeNew(options.state_dir, RealClock());
  if (!made.ok()) return Fail(made);
  std::printf("made an empty job store in %s\n", options.state_dir.c_str());
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
  app.set_version_flag("--version", nsa::FullVersion());
  app.add_option("--config", flags.config, "configs/coordinator.yaml; without it all defaults");
  app.add_option("--state-dir", flags.state_dir,
                 "store, logs and sockets [$NSA_STATE_DIR, else ~/.local/state/nsa]");
  app.add_option("--listen", flags.listen, "gRPC over TCP, e.g. 127.0.0.1:50951 [none]");
  app.add_option("--metrics", flags.metrics,
                 "HTTP of the page and /metrics [127.0.0.1:9464]; \"\" for none");
  app.add_flag(
      "--check-config", flags.check_config,
      "check the configuration and the files and addresses that it names, as the start and "
      "a reload do, and exit");
  app.add_option("--test-notice", flags.test_notice,
                 "send a sample through this notice of the configuration, say what the receiver "
                 "answered, and exit");
  app.add_option(
      "--backup", flags.backup,
      "copy the state folder to this new folder, also while a coordinator runs, and exit");
  app.add_option(
         "--keep", flags.keep,
         "with --backup: the folder is one of backups; make one in it, and keep the newest N")
      ->check(CLI::Range(1, 100'000));
  app.add_option("--verify-backup", flags.verify_backup,
                 "compare all hashes of a backup, and exit");
  app.add_option("--restore", flags.restore,
                 "put a backup in the place of the state folder's content, and exit");
  app.add_flag("--new", flags.make_new,
               "with --restore: the state folder may be one that no coordinator has used yet");
  app.add_flag("--new-store", flags.new_store,
               "make an empty job store in a state folder that has lost its own, and exit");
  app.add_option("--log-level", flags.log_level,
                 "trace, debug, info, warn, error, critical or off");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status log = nsa::InitLog("coordinator", flags.log_level);
  if (!log.ok()) return nsa::server::Fail(log);
  nsa::SilenceGrpc();
  const auto options = nsa::server::OptionsFrom(app, flags);
  if (!options.ok()) return nsa::server::Fail(options.status());
  if (app.count("--test-notice") > 0) return nsa::server::Try(*options, flags.test_notice);
  if (app.count("--backup") > 0) return nsa::server::RunBackup(*options, flags);
  if (app.count("--verify-backup") > 0) return nsa::server::RunVerification(flags.verify_backup);
  if (app.count("--restore") > 0) return nsa::server::RunRestore(*options, flags);
  if (flags.new_store) return nsa::server::MakeNewStore(*options);
  const auto read = [&app, &flags] { return nsa::server::ReadAll(app, flags); };
  const auto setup = nsa::server::ReadSetup(*options, absl::Now());
  if (!setup.ok()) return nsa::server::Fail(setup.status());
  return flags.check_config ? nsa::server::RunCheck(*setup) : nsa::server::Run(*setup, read);
}
