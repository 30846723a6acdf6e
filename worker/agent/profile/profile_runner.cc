#include "worker/agent/profile/profile_runner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/thread_name.h"
#include "common/run/control_socket.h"
#include "common/run/run_file.h"
#include "spdlog/spdlog.h"

namespace nsa::agent {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr absl::Duration kControlPatience = absl::Milliseconds(500);
constexpr absl::Duration kSignEvery = absl::Seconds(1);
constexpr size_t kPartBytes = 256 << 10;
constexpr int64_t kMostBytes = int64_t{64} << 20;

// A worker of an earlier version accepts the request and does nothing.
constexpr absl::Duration kNoTraceAfter = absl::Seconds(60);
constexpr int64_t kNoTraceAfterSteps = 20;  // beyond those of the trace

// The worker could have replaced the file with a link or a pipe, which is not opened.
Fd OpenTrace(const RunDir& dir, const std::string& id) {
  absl::StatusOr<Fd> fd = OpenRunFile(dir.profile(id));
  return fd.ok() ? *std::move(fd) : Fd();
}

}  // namespace

ProfileRunner::~ProfileRunner() {
  std::map<Key, std::unique_ptr<Job>> jobs;
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    jobs.swap(jobs_);
  }
  caller_.Cancel();
  wake_.SignalAll();
  for (auto& [key, job] : jobs) job->thread.join();
}

void ProfileRunner::Start(const v1::ProfileOrder& order, const RunDir& dir,
                          std::optional<ProcessIdentity> process) {
  const MutexLock lock(&mutex_);
  std::unique_ptr<Job>& job = jobs_[{order.profile_id(), order.rank()}];
  if (job != nullptr) return;
  job = std::make_unique<Job>();
  Errand errand = {.order = order, .dir = dir, .process = std::move(process)};
  job->thread = std::thread([this, errand = std::move(errand), raw = job.get()]() mutable {
    NameThread("profile");
    Run(std::move(errand), raw);
  });
}

void ProfileRunner::KeepOnly(const v1::HeartbeatResponse& response) {
  const MutexLock lock(&mutex_);
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const bool asked = std::ranges::any_of(response.profiles(), [&](const auto& order) {
      return Key(order.profile_id(), order.rank()) == it->first;
    });
    if (!asked) it->second->given_up = true;
    if (asked || !it->second->done) {
      ++it;
      continue;
    }
    it->second->thread.join();
    it = jobs_.erase(it);
  }
  wake_.SignalAll();
}

void ProfileRunner::Run(Errand errand, Job* job) {
  while (!Advance(&errand) && Wait(kPoll, *job)) {
  }
  job->done = true;
}

bool ProfileRunner::Wait(absl::Duration time, const Job& job) {
  const absl::Duration until = RealClock().Monotonic() + time;
  const MutexLock lock(&mutex_);
  while (!ending_ && !job.given_up) {
    const absl::Duration left = until - RealClock().Monotonic();
    if (left <= absl::ZeroDuration()) return true;
    wake_.WaitFor(&mutex_, left);
  }
  return false;
}

bool ProfileRunner::Advance(Errand* errand) {
  const v1::ProfileOrder& order = errand->order;
  if (!errand->process.has_value()) {
    return ReportError(*errand, absl::StrFormat("job %s generation %d rank %d: no such worker runs",
                                                order.job_id(), order.generation(), order.rank()));
  }
  // In this order: a worker writes its trace before it ends.
  const bool alive = IsAlive(*errand->process);
  if (!errand->trace.valid()) errand->trace = OpenTrace(errand->dir, order.profile_id());
  if (errand->trace.valid()) return Upload(errand);
  if (alive) return AskWorker(errand);
  return ReportError(*errand, absl::StrCat("rank ", order.rank(),
                                           ": it ended before its trace was complete; `nsactl "
                                           "events ",
                                           order.job_id(), "` says why"));
}

bool ProfileRunner::AskWorker(Errand* errand) {
  v1::ControlRequest request;
  request.mutable_profile()->set_id(errand->order.profile_id());
  request.mutable_profile()->set_steps(errand->order.steps());
  const absl::StatusOr<v1::ControlReply> reply =
      ControlCall(errand->dir.control(), request, kControlPatience);
  if (!reply.ok()) return false;  // The coordinator misses the sign of life.
  if (!reply->error().empty()) return ReportError(*errand, reply->error());
  const absl::Duration now = RealClock().Monotonic();
  if (errand->first_step < 0) {
    errand->first_step = reply->step();
    errand->first_reply = now;
  }
  const int64_t passed = reply->step() - errand->first_step;
  if (now - errand->first_reply > kNoTraceAfter &&
      passed > errand->order.steps() + kNoTraceAfterSteps) {
    return ReportError(
        *errand, absl::StrFormat("rank %d: no trace after %d steps; all ranks must be of this "
                                 "version: restart the job, or try again",
                                 errand->order.rank(), passed));
  }
  if (now < errand->next_sign) return false;
  errand->next_sign = now + kSignEvery;
  int64_t ignored = 0;
  Report(*errand, {}, &ignored);
  return false;
}

bool ProfileRunner::Upload(Errand* errand) {
  struct stat info = {};
  if (fstat(errand->trace.get(), &info) != 0 || info.st_size > kMostBytes || info.st_size == 0) {
    return ReportError(*errand,
                       absl::StrFormat("rank %d: a trace of %d bytes (from 1 to %d); ask for "
                                       "fewer steps",
                                       errand->order.rank(), info.st_size, kMostBytes));
  }
  v1::ReportProfileRequest report;
  report.set_size(info.st_size);
  int64_t& offset = errand->sent;
  while (true) {
    std::string part(kPartBytes, '\0');
    const ssize_t n = pread(errand->trace.get(), part.data(), part.size(), offset);
    if (n <= 0) {
      return ReportError(
          *errand, absl::StrCat("rank ", errand->order.rank(), ": the trace: ",
                                n < 0 ? std::strerror(errno) : "it is cut off", "; try again"));
    }
    part.resize(static_cast<size_t>(n));
    report.set_offset(offset);
    report.set_data(std::move(part));
    int64_t next = 0;
    if (!Report(*errand, report, &next)) return false;
    if (next >= info.st_size) return true;
    // The reader has not taken the part before this one yet.
    if (next <= offset) return false;
    offset = next;
  }
}

bool ProfileRunner::Report(const Errand& errand, v1::ReportProfileRequest report,
                           int64_t* next_offset) {
  report.set_profile_id(errand.order.profile_id());
  report.set_rank(errand.order.rank());
  v1::ReportProfileResponse response;
  const absl::Status status =
      caller_.Call(&v1::FleetService::StubInterface::ReportProfile, report, &response);
  *next_offset = response.next_offset();
  if (!status.ok()) spdlog::warn("profile {}: {}", report.profile_id(), status.ToString());
  return status.ok();
}

bool ProfileRunner::ReportError(const Errand& errand, const std::string& error) {
  v1::ReportProfileRequest report;
  report.set_error(error);
  int64_t ignored = 0;
  return Report(errand, std::move(report), &ignored);
}

}  // namespace nsa::agent
