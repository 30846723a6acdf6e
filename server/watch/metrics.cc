#include "server/watch/metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/version.h"
#include "common/estimate/estimate.h"
#include "common/estimate/health.h"
#include "common/estimate/passes.h"
#include "common/estimate/run_time.h"
#include "common/job/load.h"
#include "grpcpp/grpcpp.h"
#include "server/decide/lifecycle.h"
#include "server/decide/problem/problems.h"
#include "server/decide/progress.h"
#include "server/decide/scheduler.h"
#include "server/watch/quantity_series.h"

namespace nsa::server {
namespace {

std::string Word(v1::Device device) {
  return device == v1::DEVICE_CUDA ? "cuda" : device == v1::DEVICE_CPU ? "cpu" : "auto";
}

// A newer worker may end with a reason that is not in our table: all of those are one series.
std::string KnownReason(const std::string& word) {
  return ReasonFromWord(word).has_value() ? word : "OTHER";
}

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

void ShowProgress(const v1::Job& job, absl::Time last, SeriesGroup* series) {
  series->Gauge("nsa_job_last_progress_timestamp_seconds", {{"job_id", job.id()}})
      .Set(UnixSeconds(last));
}

// Only layers of the job's own model: a worker cannot make more series.
bool HasLayer(const v1::Job& job, const v1::LayerStats& layer) {
  return layer.layer() >= 0 && layer.layer() < job.spec().model().n_layers();
}

}  // namespace

Metrics::Metrics(const Clock& clock, bool layers) : clock_(clock), layers_(layers) {
  families_
      .Gauge("nsa_build_info",
             {{"version", kVersion}, {"revision", kRevision}, {"grpc", grpc::Version()}})
      .Set(1);
  families_.Gauge("nsa_coordinator_start_time_seconds")
      .Set(absl::ToDoubleSeconds(clock.Wall() - absl::UnixEpoch()));
  families_.Counter("nsa_jobs_submitted_total");
  for (const char* cause : {"user", "retention"}) {
    families_.Counter("nsa_jobs_deleted_total", {{"cause", cause}});
  }
  families_.Histogram("nsa_store_commit_duration_seconds");
  families_.Histogram("nsa_queue_wait_seconds");
  families_.Counter("nsa_preemptions_total");
  for (const char* op : {"insert", "update", "append", "delete", "shrink"}) {
    families_.Counter("nsa_store_errors_total", {{"op", op}});
  }
}

std::string Metrics::Text() const { return families_.Text(); }

void Metrics::ObserveCall(const std::string& method, const std::string& code, double seconds,
                          bool stream) {
  families_.Counter("nsa_rpc_requests_total", {{"method", method}, {"code", code}}).Increment();
  if (!stream)
    families_.Histogram("nsa_rpc_duration_seconds", {{"method", method}}).Observe(seconds);
}

void Metrics::ObserveStream(const std::string& method, int change) {
  families_.Gauge("nsa_rpc_streams_active", {{"method", method}}).Increment(change);
}

void Metrics::ObserveCommit(double seconds) {
  families_.Histogram("nsa_store_commit_duration_seconds").Observe(seconds);
}

void Metrics::ObserveStoreError(const std::string& operation) {
  families_.Counter("nsa_store_errors_total", {{"op", operation}}).Increment();
}

void Metrics::ObserveStore(const JobStore::Size& size) {
  const auto show = [&](GaugeFamily family, const char* kind, int64_t bytes) {
    families_.Gauge(family, {{"kind", kind}}).Set(static_cast<double>(bytes));
  };
  show("nsa_store_bytes", "total", size.bytes);
  show("nsa_store_bytes", "free", size.free_bytes);
  show("nsa_state_disk_bytes", "total", size.disk_bytes);
  show("nsa_state_disk_bytes", "free", size.disk_free_bytes);
}

void Metrics::ObserveBackup(absl::Time made) {
  families_.Gauge("nsa_last_backup_timestamp_seconds")
      .Set(absl::ToDoubleSeconds(made - absl::UnixEpoch()));
}

void Metrics::ObserveConnections(int known, int strangers, double handshakes) {
  families_.Gauge("nsa_tcp_connections", {{"kind", "known"}}).Set(known);
  families_.Gauge("nsa_tcp_connections", {{"kind", "stranger"}}).Set(strangers);
  auto& spent = families_.Counter("nsa_tcp_handshake_seconds_total");
  spent.Increment(handshakes - spent.Value());
}

void Metrics::ObserveConnectionEnd(const std::string& reason) {
  families_.Counter("nsa_tcp_connections_ended_total", {{"reason", reason}}).Increment();
}

void Metrics::ObserveCertificate(const std::string& file, absl::Time until) {
  families_.Gauge("nsa_certificate_expiry_timestamp_seconds", {{"file", file}})
      .Set(absl::ToDoubleSeconds(until - absl::UnixEpoch()));
}

Metrics::JobSeries& Metrics::SeriesOf(const v1::Job& job) {
  const auto [entry, fresh] = jobs_.try_emplace(job.id(), families_);
  JobSeries& series = entry->second;
  if (!fresh) return series;
  const v1::JobSpec& spec = job.spec();
  series.flops_per_token = FlopsPerToken(spec);
  const Labels id = {{"job_id", job.id()}};
  ShowInfo(job, RanksOf(spec), &series);
  series.Gauge("nsa_job_waivers", id).Set(job.waivers_size());
  // Created at 0 right away, so that the first increment is seen by increase().
  for (const CounterFamily counter :
       {CounterFamily("nsa_job_tokens_total"), CounterFamily("nsa_job_flops_total"),
        CounterFamily("nsa_job_nonfinite_steps_total"), CounterFamily("nsa_job_restarts_total"),
        CounterFamily("nsa_job_checkpoint_stall_seconds_total"),
        CounterFamily("nsa_job_checkpoints_total"),
        CounterFamily("nsa_job_checkpoint_failures_total")}) {
    series.Counter(counter, id);
  }
  if (!spec.train().checkpoint_url().empty()) {
    series.Counter("nsa_job_checkpoint_upload_failures_total", id);
  }
  return series;
}

// Sets 1 for the job with this many ranks, and 0 for the number that it had before.
void Metrics::ShowInfo(const v1::Job& job, int64_t ranks, JobSeries* series) {
  const std::string world_size = absl::StrCat(ranks);
  if (!series->info.empty()) {
    if (series->info["world_size"] == world_size) return;
    series->Gauge("nsa_job_info", series->info).Set(0);
  }
  series->info = {{"job_id", job.id()},
                  {"name", job.name()},
                  {"job_hash", JobHash(job.spec())},
                  {"world_size", world_size},
                  {"device", Word(job.spec().runtime().device())}};
  series->Gauge("nsa_job_info", series->info).Set(1);
}

void Metrics::ObserveMove(v1::Job::State from, const v1::StoredJob& stored) {
  const v1::Job& job = stored.job();
  const State to = job.state();
  MutexLock lock(&mutex_);
  if (from == v1::Job::STATE_UNSPECIFIED) {
    families_.Counter("nsa_jobs_submitted_total").Increment();
    for (const auto& [rule, reason] : job.waivers()) {
      families_.Counter("nsa_preflight_waivers_total", {{"rule", rule}}).Increment();
    }
    return;
  }
  // A job may fail before it had a gang, when preflight refuses it.
  if (HasGang(from) || HasGang(to) || to == v1::Job::STATE_FAILED || jobs_.contains(job.id())) {
    ShowState(job.id(), to, &SeriesOf(job));
  }
  if (from == v1::Job::STATE_PREFLIGHT && to == v1::Job::STATE_STARTING) {
    const absl::Duration waited = clock_.Wall() - absl::FromUnixNanos(stored.queued_unix_nanos());
    families_.Histogram("nsa_queue_wait_seconds")
        .Observe(std::max(absl::ToDoubleSeconds(waited), 0.0));
    SeriesOf(job).from_queue = true;
  }
  // The time in the queue, or until ranks could start again, is not one without progress.
  if (from == v1::Job::STATE_STARTING && to == v1::Job::STATE_RUNNING) {
    ShowProgress(job, clock_.Wall(), &SeriesOf(job));
  }
  const std::optional<Reason> reason = ReasonFromWord(job.reason());
  if (to == v1::Job::STATE_QUEUED && reason == Reason::kPreempted) {
    families_.Counter("nsa_preemptions_total").Increment();
  }
  const bool as_asked = reason == Reason::kMoving || reason == Reason::kGivingWay;
  if (to == v1::Job::STATE_RESTARTING && !as_asked) {
    JobSeries& series = SeriesOf(job);
    series.Counter("nsa_job_restarts_total", {{"job_id", job.id()}}).Increment();
    // A start that fails, too, prolongs the recovery from the first fault.
    if (!series.fault.has_value()) series.fault = {KnownReason(job.reason()), clock_.Monotonic()};
    series.fault->restarted = false;
  }
  if (const auto series = jobs_.find(job.id()); series != jobs_.end() && series->second.fault) {
    if (to == v1::Job::STATE_RUNNING) series->second.fault->restarted = true;
    if (to == v1::Job::STATE_STOPPING || IsTerminal(to)) series->second.fault.reset();
  }
  if (IsTerminal(to)) {
    families_
        .Counter("nsa_jobs_finished_total",
                 {{"result", StateName(to)}, {"reason", KnownReason(job.reason())}})
        .Increment();
    if (const auto series = jobs_.find(job.id()); series != jobs_.end()) {
      series->second.ended = clock_.Monotonic();
      ShowGpus(&series->second, {});
      for (const std::string& rank : series->second.workers_up) {
        for (const GaugeFamily family :
             {GaugeFamily("nsa_worker_up"), GaugeFamily("nsa_worker_telemetry_failing")}) {
          series->second.Gauge(family, {{"job_id", job.id()}, {"rank", rank}}).Set(0);
        }
      }
    }
  } else if (const auto series = jobs_.find(job.id()); series != jobs_.end()) {
    series->second.ended = absl::InfiniteDuration();
  }
}

void Metrics::ObserveDeletion(const std::string& job_id, DeletedBy by) {
  MutexLock lock(&mutex_);
  families_
      .Counter("nsa_jobs_deleted_total", {{"cause", by == DeletedBy::kUser ? "user" : "retention"}})
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
    if (record.has_started()) {
      for (auto& [kind, count] : series.fallbacks[rank]) count = 0;
    }
    if (record.has_step()) steps.push_back(&record);
    if (rank != 0) continue;
    if (record.has_checkpoint()) ObserveCheckpoint(job, record, &series);
    if (record.has_upload()) ObserveUpload(job, record.upload(), &series);
    if (record.has_eval()) {
      ForEachSeries(record::Of::kValidation, [&](const auto& quantity, const AnyFamily& family) {
        const double value = quantity.validation(record.eval());
        Show(quantity, family, {value}, {{"job_id", job.id()}}, &series);
      });
      ObserveValSets(job, record.eval(), &series);
    }
  }
  if (!steps.empty()) ObserveRank(job.id(), rank, steps.back()->step(), &series);
  if (rank != 0) return;
  if (!steps.empty()) {
    ObserveSteps(job, steps, &series);
    if (series.fault.has_value() && series.fault->restarted) {
      families_.Histogram("nsa_recovery_seconds", {{"reason", series.fault->reason}})
          .Observe(absl::ToDoubleSeconds(clock_.Monotonic() - series.fault->since));
      series.fault.reset();
    }
  }
  ShowPace(job, &series);
  ShowHealth(job, &series);
}

// Only what the job names: a worker cannot make more series.
void Metrics::ObserveValSets(const v1::Job& job, const v1::EvalRecord& eval, JobSeries* series) {
  for (const v1::NamedLoss& set : eval.sets()) {
    if (!job.spec().data().val().contains(set.name())) continue;
    series->Gauge("nsa_job_val_set_loss", {{"job_id", job.id()}, {"set", set.name()}})
        .Set(set.loss());
  }
}

void Metrics::ObserveSources(const v1::Job& job, const v1::StepRecord& step, JobSeries* series) {
  for (const v1::SourceShare& source : step.sources()) {
    const auto& mix = job.spec().data().mix();
    const bool known = std::any_of(mix.begin(), mix.end(), [&](const v1::MixSource& one) {
      return one.name() == source.name();
    });
    if (!known) continue;
    const Labels id = {{"job_id", job.id()}, {"source", source.name()}};
    const auto rows = static_cast<double>(std::max<int64_t>(source.rows(), 0));
    series->Counter("nsa_job_source_rows_total", id).Increment(rows);
    series->Gauge("nsa_job_source_epoch", id).Set(static_cast<double>(source.epoch()));
    if (source.has_loss()) series->Gauge("nsa_job_source_loss", id).Set(source.loss());
  }
}

// A problem has a series from the first time that it is found; one that is muted is 0.
void Metrics::ShowHealth(const v1::Job& job, JobSeries* series) {
  const v1::JobHealth health = HealthOf(job.progress());
  const std::set<std::string> now(health.problems().begin(), health.problems().end());
  series->problems.insert(now.begin(), now.end());
  for (const std::string& problem : series->problems) {
    series->Gauge("nsa_job_health_problem", {{"job_id", job.id()}, {"problem", problem}})
        .Set(now.contains(problem) && !IsMuted(job, problem) ? 1 : 0);
  }
}

void Metrics::ShowState(const std::string& job_id, State state, JobSeries* series) {
  series->states.insert(state);
  for (const State known : series->states) {
    series->Gauge("nsa_job_state", {{"job_id", job_id}, {"state", StateName(known)}})
        .Set(known == state ? 1 : 0);
  }
}

void Metrics::ShowPace(const v1::Job& job, JobSeries* series) {
  const Labels id = {{"job_id", job.id()}};
  series->Gauge("nsa_job_target_steps", id)
      .Set(static_cast<double>(LastStep(job.spec(), job.stop())));
  series->Gauge("nsa_job_eta_seconds", id).Set(job.progress().eta_seconds());
  const double speed = job.progress().tokens_per_second();
  series->Gauge("nsa_job_tokens_per_second", id).Set(speed);
  if (series->peak_flops > 0) {
    series->Gauge("nsa_job_mfu_ratio", id)
        .Set(speed * series->flops_per_token / series->peak_flops);
  }
  const auto tokens_between =
      static_cast<double>(job.spec().train().save_every() * TokensPerStep(job.spec()));
  series->Gauge("nsa_job_checkpoint_interval_seconds", id)
      .Set(speed > 0 ? tokens_between / speed : 0);
}

// Sets the series of a running job from the store. Values that records have set meanwhile are newer
// and stay.
void Metrics::Seed(const v1::Job& job, JobSeries* series) {
  ShowState(job.id(), job.state(), series);
  const Labels id = {{"job_id", job.id()}};
  const auto set = [&](GaugeFamily family, double value) {
    if (!series->Has(family, id)) series->Gauge(family, id).Set(value);
  };
  const v1::JobProgress& progress = job.progress();
  if (progress.step() > 0) {
    set("nsa_job_step", static_cast<double>(progress.step()));
    // The store does not keep the time of the step, so now is used. A job that makes no progress is
    // noticed from now on.
    set("nsa_job_last_progress_timestamp_seconds", UnixSeconds(clock_.Wall()));
    set("nsa_job_first_step_timestamp_seconds", UnixSeconds(clock_.Wall()));
    ShowPace(job, series);
  }
  if (progress.val_step() > 0) set("nsa_job_val_loss", progress.val_loss());
  if (progress.checkpoint_unix_nanos() > 0) {
    set("nsa_job_last_checkpoint_step", static_cast<double>(progress.checkpoint_step()));
    set("nsa_job_last_checkpoint_timestamp_seconds",
        static_cast<double>(progress.checkpoint_unix_nanos()) * 1e-9);
  }
  if (progress.uploaded_unix_nanos() > 0) {
    set("nsa_job_last_uploaded_checkpoint_step", static_cast<double>(progress.uploaded_step()));
  }
}

// Main path 6/7: metrics. Counters and the histogram use every step; gauges use the last one.
void Metrics::ObserveSteps(const v1::Job& job, const std::vector<const v1::WorkerRecord*>& records,
                           JobSeries* series) {
  const Labels id = {{"job_id", job.id()}};
  std::vector<double> values(records.size());
  ForEachSeries(record::Of::kStep, [&](const auto& quantity, const AnyFamily& family) {
    if (IsOfRank(family)) return;
    for (size_t i = 0; i < records.size(); ++i) values[i] = quantity.step(records[i]->step());
    Show(quantity, family, values, id, series);
  });
  double tokens = 0;
  for (const v1::WorkerRecord* record : records) {
    tokens += static_cast<double>(record->step().tokens());
    ObserveSources(job, record->step(), series);
    for (const v1::LayerStats& layer : record->step().layers()) {
      // Few steps have an audit, and rarely the last.
      if (layer.has_audit()) ObserveLayer(job, layer, true, series);
    }
  }
  series->Counter("nsa_job_flops_total", id).Increment(tokens * series->flops_per_token);
  const v1::WorkerRecord& last = *records.back();
  const v1::StepRecord& step = last.step();
  series->Gauge("nsa_job_step", id).Set(static_cast<double>(step.step()));
  ShowProgress(job, absl::FromUnixNanos(last.unix_nanos()), series);
  if (std::exchange(series->from_queue, false)) {
    series->Gauge("nsa_job_first_step_timestamp_seconds", id)
        .Set(static_cast<double>(records.front()->unix_nanos()) * 1e-9);
  }
  for (const v1::LayerStats& layer : step.layers()) ObserveLayer(job, layer, false, series);
}

void Metrics::ObserveRank(const std::string& job_id, int32_t rank, const v1::StepRecord& step,
                          JobSeries* series) {
  const Labels labels = {{"job_id", job_id}, {"rank", absl::StrCat(rank)}};
  series->Gauge("nsa_worker_step", labels).Set(static_cast<double>(step.step()));
  ForEachSeries(record::Of::kStep, [&](const auto& quantity, const AnyFamily& family) {
    if (IsOfRank(family)) Show(quantity, family, {quantity.step(step)}, labels, series);
  });
  // Waiting for other ranks does not count as busy.
  series->busy_seconds[rank] = step.times().step_seconds() - step.times().communication_seconds();
  double sum = 0;
  for (const auto& [other, busy] : series->busy_seconds) sum += busy;
  const double mean = sum / static_cast<double>(series->busy_seconds.size());
  series->Gauge("nsa_worker_straggler_ratio", labels)
      .Set(mean > 0 ? series->busy_seconds[rank] / mean : 1);
  for (const auto& [name, count] : step.fallbacks()) {
    auto& known = series->fallbacks[rank];
    if (known.size() >= kMostFallbacks && !known.contains(name)) continue;
    int64_t& before = known[name];
    series->Counter("nsa_fallbacks_total", {{"job_id", job_id}, {"kind", name}})
        .Increment(static_cast<double>(std::max<int64_t>(count - before, 0)));
    before = count;
  }
}

void Metrics::ObserveLayer(const v1::Job& job, const v1::LayerStats& layer, bool audit,
                           JobSeries* series) const {
  if (!layers_ || !HasLayer(job, layer)) return;
  const Labels labels = {{"job_id", job.id()}, {"layer", absl::StrCat(layer.layer())}};
  ForEachSeries(record::Of::kLayer, [&](const auto& quantity, const AnyFamily& family) {
    if ((quantity.part == record::Part::kAudit) != audit) return;
    // What the layer lacks, such as a gate, has no series.
    if (const record::Value value = MeasuredValueOf(quantity, layer)) {
      Show(quantity, family, {*value}, labels, series);
    }
  });
}

void Metrics::ObserveCheckpoint(const v1::Job& job, const v1::WorkerRecord& record,
                                JobSeries* series) {
  const v1::CheckpointRecord& checkpoint = record.checkpoint();
  const Labels id = {{"job_id", job.id()}};
  series->Counter("nsa_job_checkpoints_total", id).Increment();
  series->Counter("nsa_job_checkpoint_stall_seconds_total", id)
      .Increment(std::max(checkpoint.stall_seconds(), 0.0));
  if (!checkpoint.error().empty()) {
    series->Counter("nsa_job_checkpoint_failures_total", id).Increment();
    return;
  }
  series->Gauge("nsa_job_last_checkpoint_timestamp_seconds", id)
      .Set(static_cast<double>(record.unix_nanos()) * 1e-9);
  series->Gauge("nsa_job_last_checkpoint_step", id).Set(static_cast<double>(checkpoint.step()));
  series->Gauge("nsa_job_checkpoint_bytes", id).Set(static_cast<double>(checkpoint.bytes()));
  series->Histogram("nsa_job_checkpoint_duration_seconds", id).Observe(checkpoint.write_seconds());
}

void Metrics::ObserveUpload(const v1::Job& job, const v1::UploadRecord& upload, JobSeries* series) {
  const Labels id = {{"job_id", job.id()}};
  if (!upload.error().empty()) {
    series->Counter("nsa_job_checkpoint_upload_failures_total", id).Increment();
    return;
  }
  // Older ones that are kept follow the newest.
  series->Gauge("nsa_job_last_uploaded_checkpoint_step", id)
      .Set(static_cast<double>(std::max(upload.step(), job.progress().uploaded_step())));
}

}  // namespace nsa::server
