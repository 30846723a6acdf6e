#include "server/metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/estimate.h"
#include "common/load.h"
#include "common/run_time.h"
#include "common/version.h"
#include "grpcpp/grpcpp.h"
#include "prometheus/text_serializer.h"
#include "server/launch_check.h"
#include "server/lifecycle.h"
#include "server/progress.h"

namespace nsa::server {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

constexpr const char* kBranches[] = {"cmp", "sel", "win"};

Buckets BucketsOf(FamilyId id) {
  switch (id) {
    case FamilyId::kJobStepDuration:
      return {0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4,
              0.63, 1,     1.6,   2.5,  4,     10,  30,   100};
    case FamilyId::kJobCheckpointDuration:
      return {0.1, 1, 10, 60, 300};
    case FamilyId::kQueueWait:
      return {1, 10, 60, 600, 3'600, 36'000};
    case FamilyId::kStoreCommit:
      return {0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1};
    default:
      return {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
  }
}

std::string Word(v1::Device device) {
  return device == v1::DEVICE_CUDA ? "cuda" : device == v1::DEVICE_CPU ? "cpu" : "auto";
}

}  // namespace

Metrics::Metrics(const Clock& clock) : clock_(clock) {
  const auto count = static_cast<size_t>(FamilyId::kCount);
  gauges_.resize(count);
  counters_.resize(count);
  histograms_.resize(count);
  for (const FamilySpec& spec : kFamilies) {
    const auto i = static_cast<size_t>(spec.id);
    const auto build = [&](auto builder) {
      return &builder.Name(spec.name).Help(spec.help).Register(registry_);
    };
    if (spec.kind == kGauge) gauges_[i] = build(prometheus::BuildGauge());
    if (spec.kind == kCounter) counters_[i] = build(prometheus::BuildCounter());
    if (spec.kind == kHistogram) histograms_[i] = build(prometheus::BuildHistogram());
  }
  Gauge(FamilyId::kBuildInfo,
        {{"version", kVersion}, {"revision", kRevision}, {"grpc", grpc::Version()}})
      .Set(1);
  Gauge(FamilyId::kStartTime).Set(absl::ToDoubleSeconds(clock.Wall() - absl::UnixEpoch()));
  Counter(FamilyId::kJobsSubmitted);
  for (const char* cause : {"user", "retention"}) {
    Counter(FamilyId::kJobsDeleted, {{"cause", cause}});
  }
  Histogram(FamilyId::kStoreCommit);
  Histogram(FamilyId::kQueueWait);
  for (const char* op : {"insert", "update", "append", "delete"}) {
    Counter(FamilyId::kStoreErrors, {{"op", op}});
  }
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

prometheus::Gauge& Metrics::Gauge(FamilyId id, const Labels& labels) {
  return gauges_[static_cast<size_t>(id)]->Add(labels);
}

prometheus::Counter& Metrics::Counter(FamilyId id, const Labels& labels) {
  return counters_[static_cast<size_t>(id)]->Add(labels);
}

prometheus::Histogram& Metrics::Histogram(FamilyId id, const Labels& labels) {
  return histograms_[static_cast<size_t>(id)]->Add(labels, BucketsOf(id));
}

prometheus::Gauge& Metrics::Gauge(JobSeries* series, FamilyId id, const Labels& labels) {
  prometheus::Gauge& gauge = Gauge(id, labels);
  if (series->known.insert({id, labels}).second) {
    series->removers.push_back(
        [family = gauges_[static_cast<size_t>(id)], &gauge] { family->Remove(&gauge); });
  }
  return gauge;
}

prometheus::Counter& Metrics::Counter(JobSeries* series, FamilyId id, const Labels& labels) {
  prometheus::Counter& counter = Counter(id, labels);
  if (series->known.insert({id, labels}).second) {
    series->removers.push_back(
        [family = counters_[static_cast<size_t>(id)], &counter] { family->Remove(&counter); });
  }
  return counter;
}

prometheus::Histogram& Metrics::Histogram(JobSeries* series, FamilyId id, const Labels& labels) {
  prometheus::Histogram& histogram = Histogram(id, labels);
  if (series->known.insert({id, labels}).second) {
    series->removers.push_back([family = histograms_[static_cast<size_t>(id)], &histogram] {
      family->Remove(&histogram);
    });
  }
  return histogram;
}

void Metrics::ObserveCall(const std::string& method, const std::string& code, double seconds,
                          bool stream) {
  Counter(FamilyId::kRpcRequests, {{"method", method}, {"code", code}}).Increment();
  if (!stream) Histogram(FamilyId::kRpcDuration, {{"method", method}}).Observe(seconds);
}

void Metrics::ObserveStream(const std::string& method, int change) {
  Gauge(FamilyId::kRpcStreams, {{"method", method}}).Increment(change);
}

void Metrics::ObserveCommit(double seconds) { Histogram(FamilyId::kStoreCommit).Observe(seconds); }

void Metrics::ObserveStoreError(const std::string& operation) {
  Counter(FamilyId::kStoreErrors, {{"op", operation}}).Increment();
}

Metrics::JobSeries& Metrics::SeriesOf(const v1::Job& job) {
  const auto [entry, fresh] = jobs_.try_emplace(job.id());
  JobSeries& series = entry->second;
  if (!fresh) return series;
  const v1::JobSpec& spec = job.spec();
  series.flops_per_token = FlopsPerToken(spec);
  const Labels id = {{"job_id", job.id()}};
  Gauge(&series, FamilyId::kJobInfo,
        {{"job_id", job.id()},
         {"name", job.name()},
         {"job_hash", JobHash(spec)},
         {"world_size", absl::StrCat(spec.resources().gpus())},
         {"device", Word(spec.runtime().device())}})
      .Set(1);
  Gauge(&series, FamilyId::kJobWaivers, id).Set(job.waivers_size());
  // Present from the start, so that their rise from nothing is seen.
  for (const FamilyId counter : {FamilyId::kJobTokens, FamilyId::kJobFlops, FamilyId::kJobNonfinite,
                                 FamilyId::kJobRestarts, FamilyId::kJobCheckpointStall,
                                 FamilyId::kJobCheckpoints, FamilyId::kJobCheckpointFailures}) {
    Counter(&series, counter, id);
  }
  return series;
}

void Metrics::ObserveMove(v1::Job::State from, const v1::StoredJob& stored) {
  const v1::Job& job = stored.job();
  const State to = job.state();
  MutexLock lock(&mutex_);
  if (from == v1::Job::STATE_UNSPECIFIED) {
    Counter(FamilyId::kJobsSubmitted).Increment();
    for (const auto& [rule, reason] : job.waivers()) {
      Counter(FamilyId::kWaivers, {{"rule", rule}}).Increment();
    }
    return;
  }
  // A job may fail before it had a gang: its preflight was refused.
  if (HasGang(from) || HasGang(to) || to == v1::Job::STATE_FAILED || jobs_.contains(job.id())) {
    ShowState(job.id(), to, &SeriesOf(job));
  }
  if (from == v1::Job::STATE_PREFLIGHT && to == v1::Job::STATE_STARTING) {
    const absl::Duration waited = clock_.Wall() - absl::FromUnixNanos(stored.queued_unix_nanos());
    Histogram(FamilyId::kQueueWait).Observe(std::max(absl::ToDoubleSeconds(waited), 0.0));
  }
  if (to == v1::Job::STATE_RESTARTING) {
    Counter(&SeriesOf(job), FamilyId::kJobRestarts, {{"job_id", job.id()}}).Increment();
  }
  if (IsTerminal(to)) {
    Counter(FamilyId::kJobsFinished, {{"result", StateName(to)}, {"reason", job.reason()}})
        .Increment();
    if (const auto series = jobs_.find(job.id()); series != jobs_.end()) {
      series->second.ended = clock_.Monotonic();
      ShowGpus(&series->second, {});
      for (const std::string& rank : series->second.workers_up) {
        for (const FamilyId family : {FamilyId::kWorkerUp, FamilyId::kWorkerTelemetryFailing}) {
          Gauge(&series->second, family, {{"job_id", job.id()}, {"rank", rank}}).Set(0);
        }
      }
    }
  } else if (const auto series = jobs_.find(job.id()); series != jobs_.end()) {
    series->second.ended = absl::InfiniteDuration();
  }
}

void Metrics::ObserveDeletion(const std::string& job_id, DeletedBy by) {
  MutexLock lock(&mutex_);
  Counter(FamilyId::kJobsDeleted, {{"cause", by == DeletedBy::kUser ? "user" : "retention"}})
      .Increment();
  if (const auto series = jobs_.find(job_id); series != jobs_.end()) {
    series->second.ended = -absl::InfiniteDuration();
  }
  Sweep();
}

void Metrics::ObserveRecords(const v1::Job& job, int32_t rank,
                             const std::vector<v1::WorkerRecord>& records) {
  MutexLock lock(&mutex_);
  JobSeries& series = SeriesOf(job);
  std::vector<const v1::WorkerRecord*> steps;
  for (const v1::WorkerRecord& record : records) {
    if (record.has_started()) series.fallbacks[rank].clear();
    if (record.has_step()) steps.push_back(&record);
    if (rank != 0) continue;
    if (record.has_checkpoint()) ObserveCheckpoint(job, record, &series);
    if (record.has_eval()) {
      Gauge(&series, FamilyId::kJobValLoss, {{"job_id", job.id()}}).Set(record.eval().loss());
      Counter(&series, FamilyId::kJobPhase, {{"job_id", job.id()}, {"phase", "evaluation"}})
          .Increment(std::max(record.eval().seconds(), 0.0));
    }
  }
  if (!steps.empty()) ObserveRank(job.id(), rank, steps.back()->step(), &series);
  if (rank != 0) return;
  if (!steps.empty()) ObserveSteps(job, steps, &series);
  ShowPace(job, &series);
}

void Metrics::ShowState(const std::string& job_id, State state, JobSeries* series) {
  series->states.insert(state);
  for (const State known : series->states) {
    Gauge(series, FamilyId::kJobState, {{"job_id", job_id}, {"state", StateName(known)}})
        .Set(known == state ? 1 : 0);
  }
}

void Metrics::ShowPace(const v1::Job& job, JobSeries* series) {
  const Labels id = {{"job_id", job.id()}};
  Gauge(series, FamilyId::kJobTargetSteps, id)
      .Set(static_cast<double>(LastStep(job.spec(), job.stop())));
  Gauge(series, FamilyId::kJobEta, id).Set(job.progress().eta_seconds());
  const double speed = job.progress().tokens_per_second();
  Gauge(series, FamilyId::kJobSpeed, id).Set(speed);
  if (series->peak_flops > 0) {
    Gauge(series, FamilyId::kJobMfu, id).Set(speed * series->flops_per_token / series->peak_flops);
  }
  const auto tokens_between =
      static_cast<double>(job.spec().train().save_every() * TokensPerStep(job.spec()));
  Gauge(series, FamilyId::kJobCheckpointInterval, id).Set(speed > 0 ? tokens_between / speed : 0);
}

// What records have said meanwhile is newer and stays.
void Metrics::Seed(const v1::Job& job, JobSeries* series) {
  ShowState(job.id(), job.state(), series);
  const Labels id = {{"job_id", job.id()}};
  const auto set = [&](FamilyId family, double value) {
    if (!series->known.contains({family, id})) Gauge(series, family, id).Set(value);
  };
  const v1::JobProgress& progress = job.progress();
  if (progress.step() > 0) {
    set(FamilyId::kJobStep, static_cast<double>(progress.step()));
    // The store does not keep when the step was; a job that stands still is seen from now on.
    set(FamilyId::kJobProgress, absl::ToDoubleSeconds(clock_.Wall() - absl::UnixEpoch()));
    ShowPace(job, series);
  }
  if (progress.val_step() > 0) set(FamilyId::kJobValLoss, progress.val_loss());
  if (progress.checkpoint_unix_nanos() > 0) {
    set(FamilyId::kJobCheckpointStep, static_cast<double>(progress.checkpoint_step()));
    set(FamilyId::kJobCheckpointTime, static_cast<double>(progress.checkpoint_unix_nanos()) * 1e-9);
  }
}

// Main path 6/7: metrics. Counters and the histogram take every step; what shows only the present
// takes the last.
void Metrics::ObserveSteps(const v1::Job& job, const std::vector<const v1::WorkerRecord*>& records,
                           JobSeries* series) {
  const Labels id = {{"job_id", job.id()}};
  double tokens = 0, skipped = 0, data = 0, forward = 0, backward = 0, communication = 0,
         optimizer = 0;
  prometheus::Histogram& duration = Histogram(series, FamilyId::kJobStepDuration, id);
  for (const v1::WorkerRecord* record : records) {
    const v1::StepTimes& times = record->step().times();
    tokens += static_cast<double>(record->step().tokens());
    skipped += record->step().skipped_nonfinite() ? 1 : 0;
    duration.Observe(times.step_seconds());
    data += std::max(times.data_seconds(), 0.0);
    forward += std::max(times.forward_seconds(), 0.0);
    backward += std::max(times.backward_seconds(), 0.0);
    communication += std::max(times.communication_seconds(), 0.0);
    optimizer += std::max(times.optimizer_seconds(), 0.0);
  }
  Counter(series, FamilyId::kJobTokens, id).Increment(tokens);
  Counter(series, FamilyId::kJobFlops, id).Increment(tokens * series->flops_per_token);
  Counter(series, FamilyId::kJobNonfinite, id).Increment(skipped);
  const std::pair<const char*, double> phases[] = {{"data", data},
                                                   {"forward", forward},
                                                   {"backward", backward},
                                                   {"communication", communication},
                                                   {"optimizer", optimizer}};
  for (const auto& [phase, seconds] : phases) {
    Counter(series, FamilyId::kJobPhase, {{"job_id", job.id()}, {"phase", phase}})
        .Increment(seconds);
  }
  const v1::WorkerRecord& last = *records.back();
  const v1::StepRecord& step = last.step();
  Gauge(series, FamilyId::kJobStep, id).Set(static_cast<double>(step.step()));
  Gauge(series, FamilyId::kJobLoss, id).Set(step.loss());
  Gauge(series, FamilyId::kJobGradNorm, id).Set(step.grad_norm());
  Gauge(series, FamilyId::kJobLearningRate, id).Set(step.learning_rate());
  Gauge(series, FamilyId::kJobDataEpoch, id).Set(static_cast<double>(step.data_epoch()));
  Gauge(series, FamilyId::kJobProgress, id).Set(static_cast<double>(last.unix_nanos()) * 1e-9);
  for (const v1::LayerStats& layer : step.layers()) ObserveLayer(job.id(), layer, series);
}

void Metrics::ObserveRank(const std::string& job_id, int32_t rank, const v1::StepRecord& step,
                          JobSeries* series) {
  const Labels labels = {{"job_id", job_id}, {"rank", absl::StrCat(rank)}};
  Gauge(series, FamilyId::kWorkerStep, labels).Set(static_cast<double>(step.step()));
  for (const auto& [kind, bytes] : {std::make_pair("allocated", step.memory_allocated_bytes()),
                                    std::make_pair("reserved", step.memory_reserved_bytes())}) {
    Labels of_kind = labels;
    of_kind["kind"] = kind;
    Gauge(series, FamilyId::kWorkerMemory, of_kind).Set(static_cast<double>(bytes));
  }
  // Waiting for the others is not being busy.
  series->busy_seconds[rank] = step.times().step_seconds() - step.times().communication_seconds();
  double sum = 0;
  for (const auto& [other, busy] : series->busy_seconds) sum += busy;
  const double mean = sum / static_cast<double>(series->busy_seconds.size());
  Gauge(series, FamilyId::kWorkerStraggler, labels)
      .Set(mean > 0 ? series->busy_seconds[rank] / mean : 1);
  for (const auto& [name, count] : step.fallbacks()) {
    int64_t& before = series->fallbacks[rank][name];
    Counter(series, FamilyId::kFallbacks, {{"job_id", job_id}, {"kind", name}})
        .Increment(static_cast<double>(std::max<int64_t>(count - before, 0)));
    before = count;
  }
}

void Metrics::ObserveLayer(const std::string& job_id, const v1::LayerStats& layer,
                           JobSeries* series) {
  const Labels labels = {{"job_id", job_id}, {"layer", absl::StrCat(layer.layer())}};
  const v1::GateStats& gate = layer.gate();
  const v1::SelectionStats& selection = layer.selection();
  const std::pair<FamilyId, double> values[] = {
      {FamilyId::kGateEntropyMean, gate.entropy_mean()},
      {FamilyId::kGateEntropyMin, gate.entropy_min()},
      {FamilyId::kGateMaxMean, gate.max_gate_mean()},
      {FamilyId::kGateMaxMax, gate.max_gate_max()},
      {FamilyId::kGateCollapse, gate.collapse_ratio()},
      {FamilyId::kSelectionKeysMean, selection.keys_mean()},
      {FamilyId::kSelectionKeysMax, static_cast<double>(selection.keys_max())},
      {FamilyId::kSelectionAtMax, selection.at_max_ratio()}};
  for (const auto& [id, value] : values) Gauge(series, id, labels).Set(value);
  const auto of_branch = [](Labels base, int branch) {
    base["branch"] = kBranches[branch];
    return base;
  };
  for (int b = 0; b < std::min(gate.branch_share_size(), 3); ++b) {
    Gauge(series, FamilyId::kGateShare, of_branch(labels, b)).Set(gate.branch_share(b));
  }
  for (int b = 0; b < std::min(layer.keys_read_size(), 3); ++b) {
    Gauge(series, FamilyId::kKeysRead, of_branch(labels, b))
        .Set(static_cast<double>(layer.keys_read(b)));
  }
  for (int b = 0; b < std::min(layer.keys_expected_size(), 3); ++b) {
    Gauge(series, FamilyId::kKeysExpected, of_branch(labels, b))
        .Set(static_cast<double>(layer.keys_expected(b)));
  }
}

void Metrics::ObserveCheckpoint(const v1::Job& job, const v1::WorkerRecord& record,
                                JobSeries* series) {
  const v1::CheckpointRecord& checkpoint = record.checkpoint();
  const Labels id = {{"job_id", job.id()}};
  Counter(series, FamilyId::kJobCheckpoints, id).Increment();
  Counter(series, FamilyId::kJobCheckpointStall, id)
      .Increment(std::max(checkpoint.stall_seconds(), 0.0));
  if (!checkpoint.error().empty()) {
    Counter(series, FamilyId::kJobCheckpointFailures, id).Increment();
    return;
  }
  Gauge(series, FamilyId::kJobCheckpointTime, id)
      .Set(static_cast<double>(record.unix_nanos()) * 1e-9);
  Gauge(series, FamilyId::kJobCheckpointStep, id).Set(static_cast<double>(checkpoint.step()));
  Gauge(series, FamilyId::kJobCheckpointBytes, id).Set(static_cast<double>(checkpoint.bytes()));
  Histogram(series, FamilyId::kJobCheckpointDuration, id).Observe(checkpoint.write_seconds());
}

void Metrics::ObserveFleet(const std::vector<NodeView>& nodes, const std::vector<JobPtr>& active,
                           const std::map<v1::Job::State, int64_t>& jobs_by_state) {
  MutexLock lock(&mutex_);
  for (int state = v1::Job::STATE_QUEUED; state <= v1::Job::STATE_STOPPED; ++state) {
    const auto found = jobs_by_state.find(static_cast<State>(state));
    Gauge(FamilyId::kJobs, {{"state", StateName(static_cast<State>(state))}})
        .Set(found == jobs_by_state.end() ? 0 : static_cast<double>(found->second));
  }
  std::map<std::pair<std::string, std::string>, int64_t> slots = {{{"cpu", "free"}, 0},
                                                                  {{"cpu", "allocated"}, 0},
                                                                  {{"gpu", "free"}, 0},
                                                                  {{"gpu", "allocated"}, 0}};
  bool any_gpu = false;
  std::set<Labels> agents;
  for (const NodeView& node : nodes) {
    const bool ready = node.state == RankView::Node::kReady;
    const Labels& agent = *agents.insert({{"agent", node.info.name()}}).first;
    Gauge(FamilyId::kAgentUp, agent).Set(ready ? 1 : 0);
    if (!ready) continue;
    const NodeSlots free = FreeSlots(node.info, active);
    const auto gpus_free = static_cast<int64_t>(free.gpus_free.size());
    any_gpu = any_gpu || free.gpus_total > 0;
    slots[{"cpu", "free"}] += free.cpu_free;
    slots[{"cpu", "allocated"}] += free.cpu_total - free.cpu_free;
    slots[{"gpu", "free"}] += gpus_free;
    slots[{"gpu", "allocated"}] += free.gpus_total - gpus_free;
  }
  for (const auto& [key, count] : slots) {
    Gauge(FamilyId::kSlots, {{"kind", key.first}, {"state", key.second}})
        .Set(static_cast<double>(count));
  }
  const auto waits_for_gpu = [&](const JobPtr& job) { return InQueue(*job, any_gpu).cuda; };
  std::map<std::string, int64_t> queued = {{"cpu", 0}, {"gpu", 0}};
  for (const JobPtr& job : active) {
    if (job->job().state() == v1::Job::STATE_QUEUED) ++queued[waits_for_gpu(job) ? "gpu" : "cpu"];
  }
  for (const auto& [kind, count] : queued) {
    Gauge(FamilyId::kQueuedJobs, {{"kind", kind}}).Set(static_cast<double>(count));
  }
  SweepMachines(agents, ObserveGpus(nodes, active));
  std::set<std::string> alive;
  for (const JobPtr& job : active) {
    const std::string& id = *alive.insert(job->job().id()).first;
    // A move is newer than `active` and is not overwritten.
    if (HasGang(job->job().state()) && SeriesOf(job->job()).states.empty()) {
      Seed(job->job(), &SeriesOf(job->job()));
    }
    const double goodput = Goodput(job->job(), clock_.Wall());
    if (const auto series = jobs_.find(id); series != jobs_.end() && goodput >= 0) {
      Gauge(&series->second, FamilyId::kJobGoodput, {{"job_id", id}}).Set(goodput);
    }
  }
  // Records that come late, from a machine that was silent, make series of a job that is no more.
  for (auto& [id, series] : jobs_) {
    series.ended =
        alive.contains(id) ? absl::InfiniteDuration() : std::min(series.ended, clock_.Monotonic());
  }
  Sweep();
}

std::set<Metrics::Labels> Metrics::ObserveGpus(const std::vector<NodeView>& nodes,
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
        Gauge(FamilyId::kGpuMemory, labels).Set(static_cast<double>(bytes));
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
  }
  return shown;
}

// The job has `gpus` and no others.
void Metrics::ShowGpus(JobSeries* series, std::set<Labels> gpus) {
  for (const Labels& labels : series->gpus) {
    if (!gpus.contains(labels)) Gauge(series, FamilyId::kJobGpuInfo, labels).Set(0);
  }
  for (const Labels& labels : gpus) Gauge(series, FamilyId::kJobGpuInfo, labels).Set(1);
  series->gpus = std::move(gpus);
}

void Metrics::ObserveRanks(const v1::Job& job, const std::vector<RankView>& ranks) {
  MutexLock lock(&mutex_);
  JobSeries& series = SeriesOf(job);
  for (const RankView& rank : ranks) {
    const std::string label = absl::StrCat(rank.rank);
    series.workers_up.insert(label);
    const bool up = rank.node == RankView::Node::kReady && rank.worker.has_value() &&
                    rank.worker->state() != v1::WorkerObservation::STATE_EXITED;
    Gauge(&series, FamilyId::kWorkerUp, {{"job_id", job.id()}, {"rank", label}}).Set(up ? 1 : 0);
    const bool failing = up && !rank.worker->telemetry_error().empty();
    Gauge(&series, FamilyId::kWorkerTelemetryFailing, {{"job_id", job.id()}, {"rank", label}})
        .Set(failing ? 1 : 0);
  }
}

void Metrics::SweepMachines(const std::set<Labels>& agents, const std::set<Labels>& gpus) {
  const auto sweep = [&](FamilyId id, const std::set<Labels>& now, std::set<Labels>* before) {
    for (const Labels& labels : *before) {
      if (!now.contains(labels)) gauges_[static_cast<size_t>(id)]->Remove(&Gauge(id, labels));
    }
    *before = now;
  };
  sweep(FamilyId::kAgentUp, agents, &agents_);
  sweep(FamilyId::kGpuMemory, gpus, &gpus_);
}

void Metrics::Sweep() {
  const absl::Duration now = clock_.Monotonic();
  std::erase_if(jobs_, [&](auto& entry) {
    if (now - entry.second.ended < kGrace) return false;
    for (const auto& remove : entry.second.removers) remove();
    return true;
  });
}

}  // namespace nsa::server
