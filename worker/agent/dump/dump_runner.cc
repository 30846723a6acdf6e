#include "worker/agent/dump/dump_runner.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clean_text.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/run/run_file.h"
#include "common/run/status_page.h"
#include "spdlog/spdlog.h"
#include "worker/agent/user/exec_as.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kPatience = absl::Milliseconds(4700);
constexpr int kDeliveries = 5;
constexpr size_t kMaxText = 1 << 20;  // bytes of each text; a gRPC message holds 4 MiB

std::string StatusText(const fs::path& page) {
  const absl::StatusOr<WorkerStatus> status = ReadStatusPage(page);
  if (!status.ok()) return std::string(status.status().message());
  return status->ToString(absl::ToInt64Nanoseconds(RealClock().Monotonic()));
}

// Reads a file that the dump program wrote, cut to kMaxText bytes, and removes it.
std::string Take(const fs::path& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return "";
  std::string text = ReadBeginning(fd.get(), path, kMaxText).value_or("");
  std::error_code error;
  const auto size = static_cast<int64_t>(fs::file_size(path, error));
  fs::remove(path, error);
  const int64_t left_out = size - static_cast<int64_t>(text.size());
  if (left_out > 0) absl::StrAppend(&text, "\n(", left_out, " more bytes were left out)\n");
  return CleanText(text);  // bytes that are not UTF-8 cannot be sent
}

// The user that dumps a worker of this run folder: its own one, because the dump reads what that
// user controls. Nothing if the worker is the agent's own: then the agent dumps it.
std::optional<UnixUser> DumperOf(const RunDir& dir) {
  const absl::StatusOr<FileOwner> owner = OwnerOfFolder(dir.path);
  if (!owner.ok() || owner->uid == geteuid()) return std::nullopt;
  return UnixUser{.uid = owner->uid, .gid = owner->gid, .groups = {owner->gid}};
}

// Makes an empty file that this user may write.
absl::Status MakeFileOf(const UnixUser& user, const fs::path& path) {
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd.valid() && fchown(fd.get(), user.uid, user.gid) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, path.string());
}

}  // namespace

DumpRunner::DumpRunner(const AgentOptions& options, Link* link)
    : options_(options), caller_(link) {}

DumpRunner::~DumpRunner() {
  std::map<std::string, std::unique_ptr<Job>> jobs;
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    jobs.swap(jobs_);
  }
  wake_.SignalAll();
  for (auto& [id, job] : jobs) job->thread.join();
}

void DumpRunner::Start(const v1::DumpRequest& request, const RunDir& dir,
                       std::optional<ProcessIdentity> process) {
  const MutexLock lock(&mutex_);
  std::unique_ptr<Job>& job = jobs_[request.dump_id()];
  if (job != nullptr && (!job->done || job->delivered)) return;
  if (job != nullptr) job->thread.join();  // It could not be delivered and is requested again.
  job = std::make_unique<Job>();
  job->thread = std::thread([this, request, dir, process = std::move(process), raw = job.get()] {
    NameThread("dump");
    Run(request, dir, process, raw);
  });
}

void DumpRunner::KeepOnly(const v1::HeartbeatResponse& response) {
  const MutexLock lock(&mutex_);
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const bool asked = std::any_of(
        response.dumps().begin(), response.dumps().end(),
        [&it](const v1::DumpRequest& request) { return request.dump_id() == it->first; });
    if (asked || !it->second->done) {
      ++it;
      continue;
    }
    it->second->thread.join();
    it = jobs_.erase(it);
  }
}

void DumpRunner::Run(const v1::DumpRequest& request, const RunDir& dir,
                     const std::optional<ProcessIdentity>& process, Job* job) {
  const v1::ReportDumpRequest report = Dump(request, dir, process);
  for (int attempt = 0; attempt < kDeliveries && !ending(); ++attempt) {
    if (Deliver(report)) {
      job->delivered = true;
      break;
    }
    const MutexLock lock(&mutex_);
    if (!ending_) wake_.WaitFor(&mutex_, absl::Milliseconds(200) * (1 << attempt));
  }
  job->done = true;
}

v1::ReportDumpRequest DumpRunner::Dump(const v1::DumpRequest& request, const RunDir& dir,
                                       const std::optional<ProcessIdentity>& process) {
  const absl::Duration start = RealClock().Monotonic();
  v1::ReportDumpRequest report;
  report.set_dump_id(request.dump_id());
  report.set_rank(request.rank());
  report.set_node(options_.node_name);
  if (!dir.path.empty()) report.set_status(StatusText(dir.status()));
  if (process.has_value()) {
    report.set_pid(process->pid);
    RunProgram(dir, *process, &report);
  } else {
    report.set_error(absl::StrFormat("job %s generation %d rank %d: no such worker runs on %s",
                                     request.job_id(), request.generation(), request.rank(),
                                     options_.node_name));
  }
  report.set_seconds(absl::ToDoubleSeconds(RealClock().Monotonic() - start));
  return report;
}

void DumpRunner::RunProgram(const RunDir& dir, const ProcessIdentity& process,
                            v1::ReportDumpRequest* report) {
  // Not in the run folder, which may be removed in the meantime.
  const fs::path stem =
      options_.state_dir / absl::StrCat("dump-", process.pid, "-", absl::ToUnixNanos(absl::Now()));
  const fs::path stacks = stem.string() + ".stacks";
  const fs::path problems = stem.string() + ".problems";
  const SpawnOptions spawn = {
      .argv = {options_.agent_program.string(), "dump", "--pid", absl::StrCat(process.pid),
               "--start-ticks", absl::StrCat(process.start_ticks), "--output", stacks.string()},
      .environment = FilterEnvironment({"LD_LIBRARY_PATH"}),
      .working_dir = dir.path.parent_path(),
      .output = problems};
  const std::optional<UnixUser> dumper = DumperOf(dir);
  absl::StatusOr<ProcessIdentity> child;
  if (!dumper.has_value()) {
    child = Spawn(spawn);
  } else if (const absl::Status made = MakeFileOf(*dumper, stacks); made.ok()) {
    child = SpawnAs({.agent_program = options_.agent_program, .user = dumper}, spawn);
  } else {
    child = made;
  }
  if (!child.ok()) {
    report->set_error(std::string(child.status().message()));
    Take(stacks);
    Take(problems);
    return;
  }
  const absl::Duration deadline = RealClock().Monotonic() + kPatience;
  bool overran = false;
  while (true) {
    const absl::StatusOr<std::optional<ExitStatus>> exit = TryReap(child->pid);
    if (!exit.ok() || exit->has_value()) break;
    if (!overran && (RealClock().Monotonic() > deadline || ending())) {
      overran = true;
      // Killing the dump does not harm the worker (see stack_dump.h).
      SignalProcess(*child, SIGKILL).IgnoreError();
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  report->set_stacks(Take(stacks));
  std::string error(absl::StripAsciiWhitespace(Take(problems)));
  if (overran) absl::StrAppend(&error, error.empty() ? "" : "\n", "dump: took too long; killed");
  report->set_error(error);
}

bool DumpRunner::Deliver(const v1::ReportDumpRequest& report) {
  v1::ReportDumpResponse response;
  const absl::Status status =
      caller_.Call(&v1::FleetService::StubInterface::ReportDump, report, &response);
  if (!status.ok()) spdlog::warn("dump {}: {}", report.dump_id(), status.ToString());
  // After any other error a second attempt would get the same answer.
  return !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status);
}

bool DumpRunner::ending() {
  const MutexLock lock(&mutex_);
  return ending_;
}

}  // namespace nsa::agent
