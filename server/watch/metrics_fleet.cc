// Metrics of machines, of the queue and of running ranks.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/estimate/estimate.h"
#include "common/estimate/run_time.h"
#include "server/decide/lifecycle.h"
#include "server/decide/progress.h"
#include "server/decide/queue/hold.h"
#include "server/decide/rule/time_limit.h"
#include "server/decide/scheduler.h"
#include "server/watch/metrics.h"
#include "server/watch/quantity_series.h"

namespace nsa::server {
namespace {

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Without the one that counts them.
int64_t OpenFiles() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : std::distance(begin(files), end(files)) - 1;
}

}  // namespace

void Metrics::ObserveFleet(const std::vector<NodeView>& nodes, const std::vector<JobPtr>& active,
                           const std::map<v1::Job::State, int64_t>& jobs_by_state,
                           const Cordons& cordons) {
  MutexLock lock(&mutex_);
  for (int state = v1::Job::STATE_QUEUED; state <= v1::Job::STATE_STOPPED; ++state) {
    const auto found = jobs_by_state.find(static_cast<State>(state));
    families_.Gauge("nsa_jobs", {{"state", StateName(static_cast<State>(state))}})
        .Set(found == jobs_by_state.end() ? 0 : static_cast<double>(found->second));
  }
  ObserveSelf();
  ObserveMachines(nodes, active, cordons);
  std::set<std::string> alive;
  for (const JobPtr& job : active) {
    const std::string& id = *alive.insert(job->job().id()).first;
    // If a move has already set the state, it is newer than `active` and is kept.
    if (HasGang(job->job().state()) && SeriesOf(job->job()).states.empty()) {
      Seed(job->job(), &SeriesOf(job->job()));
    }
    const bool started = job->job().start_unix_nanos() != 0;
    if (const auto series = jobs_.find(id); series != jobs_.end() && started) {
      series->second.Gauge("nsa_job_goodput_ratio", {{"job_id", id}})
          .Set(Goodput(job->job().progress(), TotalRunSeconds(*job, clock_.Wall())));
    }
  }
  // Late records, from a machine that was silent, may create series of a job that has ended. Those
  // are marked as ended here.
  for (auto& [id, series] : jobs_) {
    series.ended =
        alive.contains(id) ? absl::InfiniteDuration() : std::min(series.ended, clock_.Monotonic());
  }
  Sweep();
}

// The heap beside the resident memory distinguishes a leak from memory that the allocator has not
// given back.
void Metrics::ObserveSelf() {
  const struct mallinfo2 heap = mallinfo2();
  const auto set = [&](const char* kind, size_t bytes) {
    families_.Gauge("nsa_coordinator_memory_bytes", {{"kind", kind}})
        .Set(static_cast<double>(bytes));
  };
  set("heap", heap.uordblks + heap.hblkhd);
  set("resident", ResidentBytes());
  families_.Gauge("nsa_coordinator_open_files").Set(static_cast<double>(OpenFiles()));
}

// Slots, agents, GPUs and the queue.
void Metrics::ObserveMachines(const std::vector<NodeView>& nodes, const std::vector<JobPtr>& active,
                              const Cordons& cordons) {
  std::map<std::pair<std::string, std::string>, int64_t> slots;
  for (const char* kind : {"cpu", "gpu"}) {
    for (const char* state : {"free", "allocated", "cordoned"}) slots[{kind, state}] = 0;
  }
  bool any_gpu = false;
  const HeldSlots held = SlotsHeld(active);
  std::set<Labels> agents;
  std::set<Labels> clocks;
  for (const NodeView& node : nodes) {
    const bool ready = node.state == RankView::Node::kReady;
    const Labels& agent = *agents.insert({{"agent", node.info.name()}}).first;
    const bool cordoned = cordons.contains(node.info.name());
    families_.Gauge("nsa_agent_up", agent).Set(ready ? 1 : 0);
    families_.Gauge("nsa_agent_cordoned", agent).Set(cordoned ? 1 : 0);
    if (!ready) continue;
    if (node.clock_offset) {
      clocks.insert(agent);
      families_.Gauge("nsa_node_clock_offset_seconds", agent)
          .Set(absl::ToDoubleSeconds(*node.clock_offset));
    }
    const NodeSlots free = FreeSlots(node.info, held);
    const auto gpus_free = static_cast<int64_t>(free.gpus_free.size());
    any_gpu = any_gpu || free.gpus_total > 0;
    const std::string unused = cordoned ? "cordoned" : "free";
    slots[{"cpu", unused}] += free.cpu_free;
    slots[{"cpu", "allocated"}] += free.cpu_total - free.cpu_free;
    slots[{"gpu", unused}] += gpus_free;
    slots[{"gpu", "allocated"}] += free.gpus_total - gpus_free;
  }
  for (const auto& [key, count] : slots) {
    families_.Gauge("nsa_slots", {{"kind", key.first}, {"state", key.second}})
        .Set(static_cast<double>(count));
  }
  ObserveQueue(active, any_gpu);
  SweepMachines(agents, clocks, ObserveGpus(nodes, active));
  ObserveGpuStates(nodes);
}

// How many queued jobs wait for each kind of slot, and since when.
void Metrics::ObserveQueue(const std::vector<JobPtr>& active, bool any_gpu) {
  const auto waits_for_gpu = [&](const JobPtr& job) { return InQueue(*job, any_gpu).cuda; };
  struct OfKind {
    int64_t jobs = 0;
    absl::Duration longest = absl::ZeroDuration();
  };
  std::map<std::string, OfKind> queued = {{"cpu", {}}, {"gpu", {}}};
  const absl::Time now = clock_.Wall();
  for (const JobPtr& job : active) {
    // Those with a provisioner wait for machines of their own.
    const bool own_machines = !job->job().spec().resources().provisioner().empty();
    if (job->job().state() != v1::Job::STATE_QUEUED || own_machines) continue;
    // Nor does a slot help those that wait for a time, a job or their owner's quota.
    if (HoldOf(job->job()).has_value()) continue;
    if (job->job().reason() == Word(Reason::kWaitingForQuota)) continue;
    OfKind& kind = queued[waits_for_gpu(job) ? "gpu" : "cpu"];
    ++kind.jobs;
    kind.longest = std::max(kind.longest, now - absl::FromUnixNanos(job->queued_unix_nanos()));
  }
  for (const auto& [kind, waiting] : queued) {
    families_.Gauge("nsa_queued_jobs", {{"kind", kind}}).Set(static_cast<double>(waiting.jobs));
    families_.Gauge("nsa_queue_oldest_wait_seconds", {{"kind", kind}})
        .Set(absl::ToDoubleSeconds(waiting.longest));
  }
}

// What the GPUs of ready machines do and whether they are healthy. A value that the driver does not
// report has no series.
void Metrics::ObserveGpuStates(const std::vector<NodeView>& nodes) {
  std::set<Labels> shown;
  for (const NodeView& node : nodes) {
    if (node.state != RankView::Node::kReady) continue;
    for (int i = 0; i < node.info.gpus_size(); ++i) {
      const v1::GpuInfo& gpu = node.info.gpus(i);
      const Labels& labels =
          *shown
               .insert(
                   {{"agent", node.info.name()}, {"gpu", absl::StrCat(i)}, {"name", gpu.name()}})
               .first;
      const auto set = [&](GaugeFamily family, bool told, double value) {
        prometheus::Gauge& gauge = families_.Gauge(family, labels);
        if (told) gauge.Set(value);
        if (!told) families_.Remove(family, &gauge);
      };
      ForEachSeries(record::Of::kGpu, [&](const auto& quantity, const AnyFamily& family) {
        const record::Value value = quantity.gpu(gpu);
        set(std::get<GaugeFamily>(family), value.has_value(), value.value_or(0));
      });
      set("nsa_gpu_memory_clock_hertz", gpu.has_memory_clock_hertz(), gpu.memory_clock_hertz());
      set("nsa_gpu_uncorrected_errors", gpu.has_uncorrected_errors(),
          static_cast<double>(gpu.uncorrected_errors()));
      set("nsa_gpu_fault", true, gpu.fault().empty() ? 0 : 1);
    }
  }
  for (const Labels& labels : states_of_gpus_) {
    if (shown.contains(labels)) continue;
    const auto remove = [&](GaugeFamily family) {
      families_.Remove(family, &families_.Gauge(family, labels));
    };
    ForEachSeries(record::Of::kGpu, [&](const auto&, const AnyFamily& family) {
      remove(std::get<GaugeFamily>(family));
    });
    for (const GaugeFamily family :
         {GaugeFamily("nsa_gpu_memory_clock_hertz"), GaugeFamily("nsa_gpu_uncorrected_errors"),
          GaugeFamily("nsa_gpu_fault")}) {
      remove(family);
    }
  }
  states_of_gpus_ = std::move(shown);
}

std::set<Labels> Metrics::ObserveGpus(const std::vector<NodeView>& nodes,
                                      const std::vector<JobPtr>& active) {
  std::set<Labels> shown;
  std::map<std::string, double> peaks;  // by UUID
  for (const NodeView& node : nodes) {
    for (int i = 0; i < node.info.gpus_size(); ++i) {
      const v1::GpuInfo& gpu = node.info.gpus(i);
      peaks[gpu.uuid()] = PeakFlops(gpu.name());
      if (node.state != RankView::Node::kReady) continue;
      const auto set = [&](const char* kind, int64_t bytes) {
        const Labels& labels = *shown
                                    .insert({{"agent", node.info.name()},
                                             {"gpu", absl::StrCat(i)},
                                             {"name", gpu.name()},
                                             {"kind", kind}})
                                    .first;
        families_.Gauge("nsa_gpu_memory_bytes", labels).Set(static_cast<double>(bytes));
      };
      set("total", gpu.memory_bytes());
      set("used", gpu.memory_bytes() - gpu.free_bytes());
    }
  }
  for (const JobPtr& job : active) {
    double peak = 0;
    std::set<Labels> gpus;
    for (int rank = 0; rank < job->placements_size(); ++rank) {
      const v1::RankPlacement& placement = job->placements(rank);
      if (placement.cuda_device().empty()) continue;
      peak += peaks[placement.cuda_device()];
      gpus.insert({{"job_id", job->job().id()},
                   {"rank", absl::StrCat(rank)},
                   {"agent", placement.node()},
                   {"uuid", placement.cuda_device()}});
    }
    if (gpus.empty() && !jobs_.contains(job->job().id())) continue;
    JobSeries& series = SeriesOf(job->job());
    if (!gpus.empty()) series.peak_flops = peak;
    ShowGpus(&series, std::move(gpus));
    if (!job->placements().empty()) ShowInfo(job->job(), job->placements_size(), &series);
  }
  return shown;
}

// Sets 1 for `gpus`, and 0 for the GPUs that the job had before.
void Metrics::ShowGpus(JobSeries* series, std::set<Labels> gpus) {
  for (const Labels& labels : series->gpus) {
    if (!gpus.contains(labels)) series->Gauge("nsa_job_gpu_info", labels).Set(0);
  }
  for (const Labels& labels : gpus) series->Gauge("nsa_job_gpu_info", labels).Set(1);
  series->gpus = std::move(gpus);
}

void Metrics::ObserveRanks(const v1::Job& job, const std::vector<RankView>& ranks) {
  MutexLock lock(&mutex_);
  JobSeries& series = SeriesOf(job);
  // Of a job that goes on with fewer ranks, the others are not up and count in no mean.
  const auto count = std::ssize(ranks);
  std::erase_if(series.busy_seconds, [&](const auto& busy) { return busy.first >= count; });
  for (int32_t gone = static_cast<int32_t>(count); series.workers_up.contains(absl::StrCat(gone));
       ++gone) {
    ShowRank(job.id(), gone, false, false, &series);
  }
  for (const RankView& rank : ranks) {
    const bool up = rank.node == RankView::Node::kReady && rank.worker.has_value() &&
                    rank.worker->state() != v1::WorkerObservation::STATE_EXITED;
    ShowRank(job.id(), rank.rank, up, up && !rank.worker->telemetry_error().empty(), &series);
  }
}

void Metrics::ShowRank(const std::string& job_id, int32_t rank, bool up, bool failing,
                       JobSeries* series) {
  const Labels labels = {{"job_id", job_id}, {"rank", absl::StrCat(rank)}};
  series->workers_up.insert(labels.at("rank"));
  series->Gauge("nsa_worker_up", labels).Set(up ? 1 : 0);
  series->Gauge("nsa_worker_telemetry_failing", labels).Set(failing ? 1 : 0);
}

void Metrics::AddNotice(const std::string& notice) {
  for (const char* result : {"delivered", "refused", "given_up"}) ObserveNotice(notice, result, 0);
  families_.Counter("nsa_notice_failed_attempts_total", {{"notice", notice}});
  ObserveNoticeWaiting(notice, 0);
}

void Metrics::ObserveNotice(const std::string& notice, const std::string& result, int events) {
  families_.Counter("nsa_notice_events_total", {{"notice", notice}, {"result", result}})
      .Increment(events);
}

void Metrics::ObserveNoticeFailure(const std::string& notice) {
  families_.Counter("nsa_notice_failed_attempts_total", {{"notice", notice}}).Increment();
}

void Metrics::ObserveNoticeWaiting(const std::string& notice, int64_t since_unix_nanos) {
  const absl::Duration age = since_unix_nanos == 0
                                 ? absl::ZeroDuration()
                                 : clock_.Wall() - absl::FromUnixNanos(since_unix_nanos);
  families_.Gauge("nsa_notice_oldest_waiting_seconds", {{"notice", notice}})
      .Set(std::max(absl::ToDoubleSeconds(age), 0.0));
}

void Metrics::SweepMachines(const std::set<Labels>& agents, const std::set<Labels>& clocks,
                            const std::set<Labels>& gpus) {
  Retire("nsa_agent_cordoned", agents, agents_);
  Retire("nsa_agent_up", agents, agents_);
  Retire("nsa_node_clock_offset_seconds", clocks, clocks_);
  Retire("nsa_gpu_memory_bytes", gpus, gpus_);
  agents_ = agents;
  clocks_ = clocks;
  gpus_ = gpus;
}

void Metrics::Retire(GaugeFamily family, const std::set<Labels>& now,
                     const std::set<Labels>& before) {
  for (const Labels& labels : before) {
    if (!now.contains(labels)) families_.Remove(family, &families_.Gauge(family, labels));
  }
}

void Metrics::Sweep() {
  const absl::Duration now = clock_.Monotonic();
  std::erase_if(jobs_, [&](const auto& entry) { return now - entry.second.ended >= kGrace; });
  std::vector<std::pair<absl::Duration, std::string>> ended;
  for (const auto& [id, series] : jobs_) {
    if (series.ended != absl::InfiniteDuration()) ended.emplace_back(series.ended, id);
  }
  if (ended.size() <= kMostEnded) return;
  const auto newest = ended.end() - static_cast<std::ptrdiff_t>(kMostEnded);
  std::nth_element(ended.begin(), newest, ended.end());
  for (auto old = ended.begin(); old != newest; ++old) jobs_.erase(old->second);
}

}  // namespace nsa::server
