#include "worker/train/profile/profiler.h"

#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/thread_name.h"

namespace nsa::train {
namespace {

constexpr size_t kLongestId = 64;

absl::Status Check(const v1::ProfileRequest& request) {
  const std::string& id = request.id();
  // It becomes a part of a file's name.
  const bool plain =
      std::ranges::all_of(id, [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
  if (id.empty() || id.size() > kLongestId || !plain) {
    return absl::InvalidArgumentError(
        absl::StrFormat("profile: id: %d bytes (1 to %d letters, digits and -); choose another",
                        id.size(), kLongestId));
  }
  if (request.steps() < 1 || request.steps() > kMostTraceSteps) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "profile: steps: %d (from 1 to %d); choose fewer", request.steps(), kMostTraceSteps));
  }
  return absl::OkStatus();
}

// FNV-1a of the request, cut to 52 bits, so that it is exact in fp64; never 0.
double TicketOf(const v1::ProfileRequest& request) {
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char c : absl::StrCat(request.id(), " ", request.steps())) {
    hash = (hash ^ c) * 1099511628211u;
  }
  return static_cast<double>((hash >> 12) | 1);
}

// Traces of this run folder that nobody fetched.
void RemoveOthers(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (absl::StartsWith(entry.path().filename().string(), "profile-")) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

}  // namespace

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {}

Profiler::~Profiler() {
  if (active_ != nullptr) options_.page->SetObserver(nullptr);
  if (writer_.joinable()) writer_.join();
}

void Profiler::SetDevice(std::vector<MemoryGauge> gauges,
                         std::function<absl::StatusOr<GpuRecorder*>()> open_gpu,
                         std::function<void()> capture_again) {
  options_.gauges = std::move(gauges);
  options_.open_gpu = std::move(open_gpu);
  options_.capture_again = std::move(capture_again);
}

absl::Status Profiler::Request(const v1::ProfileRequest& request) {
  if (const absl::Status valid = Check(request); !valid.ok()) return valid;
  const MutexLock lock(&mutex_);
  if (request.id() == active_id_) return absl::OkStatus();
  if (request.id() == last_id_) return last_result_;
  pending_ = request;
  return absl::OkStatus();
}

double Profiler::ticket() {
  const MutexLock lock(&mutex_);
  if (!pending_.has_value() || !active_id_.empty()) return 0;
  offered_ = *pending_;
  return TicketOf(offered_);
}

void Profiler::Agreed() {
  if (writer_.joinable()) writer_.join();
  active_ = std::make_unique<Active>();
  active_->request = offered_;
  const MutexLock lock(&mutex_);
  active_id_ = offered_.id();
  // A request that came in between stays.
  if (pending_.has_value() && pending_->id() == active_id_) pending_.reset();
}

void Profiler::StepBegins(int64_t step) {
  if (active_ == nullptr) return;
  if (options_.open_gpu && !active_->prepared) return Prepare();
  if (active_->host == nullptr) return BeginRecording(step);
  if (step - active_->header.first_step < active_->request.steps() && !IsReplaced()) {
    active_->header.last_step = step;
    return active_->host->BeginStep(step);
  }
  EndRecording(/*healthy=*/true);
}

void Profiler::Prepare() {
  active_->prepared = true;
  const absl::StatusOr<GpuRecorder*> gpu = options_.open_gpu();
  absl::Status ready = gpu.status();
  if (ready.ok()) ready = (*gpu)->Start();
  if (ready.ok()) {
    active_->gpu = *gpu;
    options_.capture_again();
    return;
  }
  active_->header.notes.push_back(absl::StrCat("no kernels: ", ready.message()));
}

void Profiler::BeginRecording(int64_t step) {
  TraceHeader& header = active_->header;
  header.rank = options_.rank;
  header.host = HostName();
  header.first_step = header.last_step = step;
  header.asked_steps = active_->request.steps();
  header.base_unix_nanos = options_.unix_now();
  header.base_monotonic = active_->began = options_.now();
  active_->host = std::make_unique<HostRecorder>(&active_->trace, options_.gauges, options_.now);
  options_.page->SetObserver(active_->host.get());
  active_->host->BeginStep(step);
}

void Profiler::EndRecording(bool healthy) {
  options_.page->SetObserver(nullptr);
  std::unique_ptr<Active> done = std::move(active_);
  const int64_t end = done->host != nullptr ? done->host->EndStep() : options_.now();
  if (done->gpu != nullptr && healthy) {
    const absl::Status stopped = done->gpu->Stop(done->began, end, &done->trace);
    if (!stopped.ok()) done->header.notes.push_back(std::string(stopped.message()));
    options_.capture_again();
  } else if (done->gpu != nullptr) {
    done->gpu->Abandon();
    done->header.notes.push_back("no kernels: the run failed while they were recorded");
  }
  if (done->host == nullptr) {
    return SetResult(done->request.id(),
                     absl::FailedPreconditionError(absl::StrCat(
                         "profile: rank ", options_.rank,
                         ": the run ended before the first step of the trace; ask earlier")));
  }
  if (!healthy) {
    done->header.notes.push_back(
        absl::StrCat("step ", done->header.last_step, " is cut off: the run failed in it"));
  }
  const int64_t recorded = done->header.last_step - done->header.first_step + 1;
  if (recorded < done->request.steps()) {
    done->header.notes.push_back(
        absl::StrFormat("the run ended after %d of %d steps", recorded, done->request.steps()));
  }
  done->host.reset();
  if (IsReplaced()) {
    return SetResult(done->request.id(),
                     absl::CancelledError(absl::StrCat("profile: rank ", options_.rank,
                                                       ": another trace took its place")));
  }
  if (writer_.joinable()) writer_.join();
  writer_ = std::thread([this, raw = done.release()] { Write(std::unique_ptr<Active>(raw)); });
}

void Profiler::Write(std::unique_ptr<Active> done) {
  NameThread("profile");
  setpriority(PRIO_PROCESS, 0, 10);  // of this thread: training comes first
  std::filesystem::path path = options_.file;
  if (options_.run_dir.has_value()) {
    RemoveOthers(options_.run_dir->path);
    path = options_.run_dir->profile(done->request.id());
  }
  const absl::Status written = WriteTrace(done->trace, done->header, path);
  const TraceHeader& header = done->header;
  for (const std::string& note : header.notes) spdlog::warn("profile: {}", note);
  if (written.ok()) {
    spdlog::info("profile: steps {} to {} in {}, {}", header.first_step, header.last_step,
                 path.string(), Count(static_cast<int64_t>(done->trace.events().size()), "event"));
  } else {
    spdlog::error("{}", std::string(written.message()));
  }
  SetResult(done->request.id(), written);
}

bool Profiler::IsReplaced() {
  const MutexLock lock(&mutex_);
  return pending_.has_value();
}

void Profiler::SetResult(const std::string& id, const absl::Status& result) {
  const MutexLock lock(&mutex_);
  active_id_.clear();
  last_id_ = id;
  last_result_ = result;
}

void Profiler::Close(bool healthy) {
  if (active_ != nullptr) EndRecording(healthy);
  if (writer_.joinable()) writer_.join();
}

}  // namespace nsa::train
