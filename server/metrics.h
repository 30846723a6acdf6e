// The coordinator's Prometheus metrics. metrics_table.h says what there is; this says when it
// changes, and when the series of a job go away.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/fleet.h"
#include "server/job_store.h"
#include "server/lifecycle.h"
#include "server/metrics_table.h"

namespace nsa::server {

// Thread-safe; the lock means "one job's series are being changed".
class Metrics {
 public:
  explicit Metrics(const Clock& clock);

  // The text that Prometheus reads.
  std::string Text() const;

  void ObserveCall(const std::string& method, const std::string& code, double seconds, bool stream);
  void ObserveStream(const std::string& method, int change);
  void ObserveCommit(double seconds);
  void ObserveStoreError(const std::string& operation);

  // A job moved from one state to another (from UNSPECIFIED: it was submitted).
  void ObserveMove(v1::Job::State from, const v1::StoredJob& job);

  // A job is no longer there: its series go at once.
  void ObserveDeletion(const std::string& job_id, DeletedBy by);

  // New records of one rank of a job's present generation.
  void ObserveRecords(const v1::Job& job, int32_t rank,
                      const std::vector<v1::WorkerRecord>& records);

  // What there is now: series of machines that are not among `nodes`, and of GPUs of machines that
  // are not ready, go. Also drops the series of jobs that ended more than kGrace ago. A job that is
  // not active has ended. A job with a gang that moved to its state before this coordinator started
  // gets its series here: state, step, validation loss and checkpoint as the store has them.
  void ObserveFleet(const std::vector<NodeView>& nodes, const std::vector<JobPtr>& active,
                    const std::map<v1::Job::State, int64_t>& jobs_by_state);

  // Which ranks of a job run.
  void ObserveRanks(const v1::Job& job, const std::vector<RankView>& ranks);

  // Long enough for the last scrape to see the end.
  static constexpr absl::Duration kGrace = absl::Minutes(5);

 private:
  using Labels = std::map<std::string, std::string>;
  struct JobSeries {
    std::set<std::pair<FamilyId, Labels>> known;
    std::vector<std::function<void()>> removers;
    absl::Duration ended = absl::InfiniteDuration();  // monotonic
    double flops_per_token = 0;
    double peak_flops = 0;  // of all its GPUs; 0: on the CPU, or not known
    std::map<int32_t, std::map<std::string, int64_t>> fallbacks;  // by rank, as last reported
    std::map<int32_t, double> busy_seconds;                       // by rank, of the last step
    std::set<std::string> workers_up;                             // ranks with nsa_worker_up
    std::set<Labels> gpus;                                        // with nsa_job_gpu_info 1
    std::set<State> states;                                       // with nsa_job_state
  };

  prometheus::Gauge& Gauge(FamilyId id, const Labels& labels = {});
  prometheus::Counter& Counter(FamilyId id, const Labels& labels = {});
  prometheus::Histogram& Histogram(FamilyId id, const Labels& labels = {});
  // The same for a job's series, which are remembered so that they can be removed.
  prometheus::Gauge& Gauge(JobSeries* series, FamilyId id, const Labels& labels);
  prometheus::Counter& Counter(JobSeries* series, FamilyId id, const Labels& labels);
  prometheus::Histogram& Histogram(JobSeries* series, FamilyId id, const Labels& labels);

  JobSeries& SeriesOf(const v1::Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowState(const std::string& job_id, State state, JobSeries* series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowPace(const v1::Job& job, JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Seed(const v1::Job& job, JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveSteps(const v1::Job& job, const std::vector<const v1::WorkerRecord*>& records,
                    JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveRank(const std::string& job_id, int32_t rank, const v1::StepRecord& step,
                   JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveLayer(const std::string& job_id, const v1::LayerStats& layer, JobSeries* series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveCheckpoint(const v1::Job& job, const v1::WorkerRecord& record, JobSeries* series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the labels of the GPUs that have series now.
  std::set<Labels> ObserveGpus(const std::vector<NodeView>& nodes,
                               const std::vector<JobPtr>& active)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowGpus(JobSeries* series, std::set<Labels> gpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepMachines(const std::set<Labels>& agents, const std::set<Labels>& gpus)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  prometheus::Registry registry_;
  std::vector<prometheus::Family<prometheus::Gauge>*> gauges_;  // by FamilyId, or null
  std::vector<prometheus::Family<prometheus::Counter>*> counters_;
  std::vector<prometheus::Family<prometheus::Histogram>*> histograms_;
  Mutex mutex_;
  std::map<std::string, JobSeries> jobs_ ABSL_GUARDED_BY(mutex_);
  std::set<Labels> agents_ ABSL_GUARDED_BY(mutex_);  // with nsa_agent_up
  std::set<Labels> gpus_ ABSL_GUARDED_BY(mutex_);    // with nsa_gpu_memory_bytes
};

}  // namespace nsa::server
