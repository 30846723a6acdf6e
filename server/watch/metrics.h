// The coordinator's Prometheus metrics. metrics_table.h declares them; this class updates them and
// removes the series of jobs that have ended.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "server/decide/lifecycle.h"
#include "server/decide/rule/cordon.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/watch/families.h"

namespace nsa::server {

// Thread-safe.
class Metrics {
 public:
  // `layers`: whether single layers of jobs have series.
  explicit Metrics(const Clock& clock, bool layers = true);

  // All metrics in the Prometheus text format.
  std::string Text() const;

  void ObserveCall(const std::string& method, const std::string& code, double seconds, bool stream);
  void ObserveStream(const std::string& method, int change);
  void ObserveCommit(double seconds);
  void ObserveStoreError(const std::string& operation);
  void ObserveStore(const JobStore::Size& size);
  // When the newest backup was made; 1970: none was.
  void ObserveBackup(absl::Time made);

  // Connections of the TCP port: those open now, and one that was ended or refused for `reason`.
  // `handshakes`: the processor time of all TLS handshakes so far, in seconds.
  void ObserveConnections(int known, int strangers, double handshakes);
  void ObserveConnectionEnd(const std::string& reason);

  // A certificate that the coordinator uses, and when it ends.
  void ObserveCertificate(const std::string& file, absl::Time until);

  // A notice of the configuration: its series begin at 0.
  void AddNotice(const std::string& notice);
  // `result` is delivered, refused or given_up.
  void ObserveNotice(const std::string& notice, const std::string& result, int events);
  void ObserveNoticeFailure(const std::string& notice);
  // `since_unix_nanos`: when the oldest event that waits for delivery happened; 0: none waits.
  void ObserveNoticeWaiting(const std::string& notice, int64_t since_unix_nanos);

  // A job has moved from one state to another (from UNSPECIFIED: it was submitted).
  void ObserveMove(v1::Job::State from, const v1::StoredJob& job);

  // A job was deleted: its series are removed at once.
  void ObserveDeletion(const std::string& job_id, DeletedBy by);

  // New records of one rank of a job's current generation.
  void ObserveRecords(const v1::Job& job, int32_t rank,
                      const std::vector<v1::WorkerRecord>& records);

  // Updates the metrics of jobs, machines and the queue. Removes the series of machines that are
  // not among `nodes`, of GPUs of machines that are not ready, and of jobs that ended more than
  // kGrace ago, or before the last kMostEnded. A job that is not among `active` has ended. A job
  // with a gang that entered its state before this coordinator started gets its series here: state,
  // step, validation loss and checkpoint as stored.
  void ObserveFleet(const std::vector<NodeView>& nodes, const std::vector<JobPtr>& active,
                    const std::map<v1::Job::State, int64_t>& jobs_by_state,
                    const Cordons& cordons = {});

  // Updates what each owner takes, of those with the most jobs kMostOwners. Removes the series of
  // all others.
  void ObserveOwners(const v1::ListUseResponse& use);

  // Updates which ranks of a job run.
  void ObserveRanks(const v1::Job& job, const std::vector<RankView>& ranks);

  // Long enough for a scrape to see the final values.
  static constexpr absl::Duration kGrace = absl::Minutes(5);
  static constexpr size_t kMostEnded = 200;  // ended jobs that have series; about 100 KB each

  static constexpr size_t kMostOwners = 100;

  // How many kinds of fallbacks of a rank have series; further ones have none.
  static constexpr size_t kMostFallbacks = 64;

 private:
  struct JobSeries : SeriesGroup {
    using SeriesGroup::SeriesGroup;
    absl::Duration ended = absl::InfiniteDuration();  // monotonic
    double flops_per_token = 0;
    double peak_flops = 0;  // sum over its GPUs; 0: on the CPU, or not known
    std::map<int32_t, std::map<std::string, int64_t>> fallbacks;  // by rank, as last reported
    std::map<int32_t, double> busy_seconds;                       // by rank, of the last step
    std::set<std::string> workers_up;                             // ranks with nsa_worker_up
    std::set<Labels> gpus;                                        // with nsa_job_gpu_info 1
    Labels info;                                                  // of nsa_job_info, with 1
    std::set<State> states;                                       // with nsa_job_state
    std::set<std::string> problems;                               // with nsa_job_health_problem
    bool from_queue = false;  // from its start out of the queue until its first step
    // From the loss of a rank until the next step.
    struct Fault {
      std::string reason;
      absl::Duration since;    // monotonic
      bool restarted = false;  // all ranks run again: the next step is a new one
    };
    std::optional<Fault> fault;
  };

  JobSeries& SeriesOf(const v1::Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void ShowInfo(const v1::Job& job, int64_t ranks, JobSeries* series);
  void ShowState(const std::string& job_id, State state, JobSeries* series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void ShowRank(const std::string& job_id, int32_t rank, bool up, bool failing,
                       JobSeries* series);
  void ShowHealth(const v1::Job& job, JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowPace(const v1::Job& job, JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Seed(const v1::Job& job, JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveSteps(const v1::Job& job, const std::vector<const v1::WorkerRecord*>& records,
                    JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveRank(const std::string& job_id, int32_t rank, const v1::StepRecord& step,
                   JobSeries* series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveValSets(const v1::Job& job, const v1::EvalRecord& eval, JobSeries* series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveSources(const v1::Job& job, const v1::StepRecord& step, JobSeries* series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The quantities of a layer that are measured in every step, or those of its `audit`.
  void ObserveLayer(const v1::Job& job, const v1::LayerStats& layer, bool audit,
                    JobSeries* series) const;
  void ObserveUpload(const v1::Job& job, const v1::UploadRecord& upload, JobSeries* series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveCheckpoint(const v1::Job& job, const v1::WorkerRecord& record, JobSeries* series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveMachines(const std::vector<NodeView>& nodes, const std::vector<JobPtr>& active,
                       const Cordons& cordons) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the labels of the GPUs that have series now.
  std::set<Labels> ObserveGpus(const std::vector<NodeView>& nodes,
                               const std::vector<JobPtr>& active)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveQueue(const std::vector<JobPtr>& active, bool any_gpu)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveGpuStates(const std::vector<NodeView>& nodes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowGpus(JobSeries* series, std::set<Labels> gpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepMachines(const std::set<Labels>& agents, const std::set<Labels>& clocks,
                     const std::set<Labels>& gpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the series that were `before` and are not `now`.
  void Retire(GaugeFamily family, const std::set<Labels>& now, const std::set<Labels>& before)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveSelf() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const bool layers_;
  MetricFamilies families_;
  Mutex mutex_;
  std::map<std::string, JobSeries> jobs_ ABSL_GUARDED_BY(mutex_);
  std::set<Labels> owners_ ABSL_GUARDED_BY(mutex_);          // with nsa_owner_jobs
  std::set<Labels> quotas_ ABSL_GUARDED_BY(mutex_);          // with nsa_owner_quota_used_ratio
  std::set<Labels> agents_ ABSL_GUARDED_BY(mutex_);          // with nsa_agent_up
  std::set<Labels> clocks_ ABSL_GUARDED_BY(mutex_);          // with nsa_node_clock_offset_seconds
  std::set<Labels> gpus_ ABSL_GUARDED_BY(mutex_);            // with nsa_gpu_memory_bytes
  std::set<Labels> states_of_gpus_ ABSL_GUARDED_BY(mutex_);  // with nsa_gpu_fault and the like
};

}  // namespace nsa::server
