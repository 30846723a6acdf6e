// Every Prometheus metric of the coordinator, declared once: kind, name, labels, help, buckets.
// Values are in base units. Series with the label job_id are removed five minutes after the job has
// ended, or when it is deleted. To add a metric, add a row here, set it in metrics.cc or
// metrics_fleet.cc by its name, and name it in docs/results.md; that of a quantity that records
// have is declared by the quantity's row in common/record/quantities.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <span>
#include <string_view>

#include "common/record/quantities.h"

namespace nsa::server {

enum class MetricKind { kGauge, kCounter, kHistogram };

// Upper bounds of a histogram's buckets.
inline constexpr double kShortBuckets[] = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
inline constexpr double kCommitBuckets[] = {0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1};
inline constexpr double kStepSeconds[] = {0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4,
                                          0.63, 1,     1.6,   2.5,  4,     10,  30,   100};
inline constexpr double kCheckpointBuckets[] = {0.1, 1, 10, 60, 300};
inline constexpr double kWaitBuckets[] = {1, 10, 60, 600, 3'600, 36'000};
inline constexpr double kRecoveryBuckets[] = {1, 3, 10, 30, 60, 120, 300, 600, 1'800, 3'600};

struct FamilySpec {
  MetricKind kind;
  const char* name;
  const char* labels;  // for readers of this table
  const char* help;
  std::span<const double> buckets = {};  // of a histogram
};

inline constexpr auto kGauge = MetricKind::kGauge;
inline constexpr auto kCounter = MetricKind::kCounter;
inline constexpr auto kHistogram = MetricKind::kHistogram;

// Families of their own; those of quantities are in common/record/quantities.h.
inline constexpr FamilySpec kOwnFamilies[] = {
    {kGauge, "nsa_build_info", "version revision grpc", "Always 1; the labels say what runs."},
    {kGauge, "nsa_coordinator_start_time_seconds", "",
     "Unix time at which the coordinator started."},
    {kGauge, "nsa_coordinator_memory_bytes", "kind",
     "Memory of the coordinator: heap is what it has allocated and not freed, resident what it "
     "takes of the machine."},
    {kGauge, "nsa_coordinator_open_files", "", "File descriptors of the coordinator."},
    {kGauge, "nsa_certificate_expiry_timestamp_seconds", "file",
     "Unix time at which a certificate that the coordinator uses ends; if a file has several "
     "authorities, the latest."},
    {kCounter, "nsa_rpc_requests_total", "method code", "Calls that have ended."},
    {kHistogram, "nsa_rpc_duration_seconds", "method", "Duration of unary calls, without streams.",
     kShortBuckets},
    {kGauge, "nsa_rpc_streams_active", "method", "Streams open now."},
    {kGauge, "nsa_tcp_connections", "kind",
     "Connections of the gRPC port open now: known have made a call with a valid token, stranger "
     "have not."},
    {kCounter, "nsa_tcp_connections_ended_total", "reason",
     "Connections of the gRPC port that were ended or refused because they overstepped a limit."},
    {kCounter, "nsa_tcp_handshake_seconds_total", "",
     "Processor time of TLS handshakes on the gRPC port."},
    {kHistogram, "nsa_store_commit_duration_seconds", "",
     "Duration of a commit to the job store, fsync included.", kCommitBuckets},
    {kCounter, "nsa_store_errors_total", "op", "Operations of the job store that failed."},
    {kGauge, "nsa_store_bytes", "kind",
     "Size of the job store: total, and what of it is free for rows to come."},
    {kGauge, "nsa_state_disk_bytes", "kind",
     "The file system of the state folder: total, and free for the coordinator."},
    {kGauge, "nsa_last_backup_timestamp_seconds", "",
     "Unix time at which the newest verified backup of the state folder was made; 0 if none was."},
    {kGauge, "nsa_jobs", "state", "Jobs in the store."},
    {kGauge, "nsa_queued_jobs", "kind",
     "Queued jobs by the kind of slot that they wait for: cpu or gpu. Without those that wait for "
     "machines of a cluster manager, for other jobs or for their time."},
    {kGauge, "nsa_queue_oldest_wait_seconds", "kind",
     "Time since the job of nsa_queued_jobs that has waited longest entered the queue; 0 while "
     "none waits."},
    {kCounter, "nsa_jobs_submitted_total", "", "Jobs accepted."},
    {kCounter, "nsa_jobs_finished_total", "result reason", "Jobs that have ended."},
    {kCounter, "nsa_jobs_deleted_total", "cause",
     "Ended jobs that were deleted, by a user or after job_retention_days (retention)."},
    {kGauge, "nsa_owner_jobs", "owner", "Jobs of the owner that have not ended."},
    {kGauge, "nsa_owner_ranks", "owner", "Ranks of the owner's jobs that are placed."},
    {kGauge, "nsa_owner_gpu_seconds", "owner",
     "Time that ranks of the owner's jobs ran on GPUs in the window of its quota, by default the "
     "last 7 days."},
    {kGauge, "nsa_owner_quota_used_ratio", "owner quota",
     "Share of a quota that the owner has used: jobs, ranks or gpu_time."},
    {kCounter, "nsa_preemptions_total", "",
     "Jobs that gave way to a waiting job of higher priority and are queued again."},
    {kHistogram, "nsa_queue_wait_seconds", "", "Time from entering the queue to the start.",
     kWaitBuckets},
    {kHistogram, "nsa_recovery_seconds", "reason",
     "Time from the loss of a rank, noticed for this reason, to the next step that was done. A job "
     "that ended or a restart of the coordinator in between is not counted.",
     kRecoveryBuckets},
    {kCounter, "nsa_preflight_waivers_total", "rule", "Waived preflight rules of accepted jobs."},
    {kCounter, "nsa_notice_events_total", "notice result",
     "Events that a notice delivered, that its receiver refused, or that were given up after "
     "a day."},
    {kCounter, "nsa_notice_failed_attempts_total", "notice",
     "Requests or mails of a notice that failed and are made again."},
    {kGauge, "nsa_notice_oldest_waiting_seconds", "notice",
     "Age of the oldest event that waits for delivery; 0 while none waits."},

    {kGauge, "nsa_slots", "kind state",
     "Slots of the ready machines: cpu or gpu; free, allocated, or cordoned (free on a machine "
     "that is cordoned or drained)."},
    {kGauge, "nsa_agent_up", "agent",
     "1 while the agent's heartbeats arrive, else 0; gone when the machine is forgotten."},
    {kGauge, "nsa_node_clock_offset_seconds", "agent",
     "The machine's clock minus the coordinator's, from the fastest of its last heartbeats."},
    {kGauge, "nsa_agent_cordoned", "agent",
     "1 while no rank is placed on the machine because it is cordoned or drained, else 0."},
    {kGauge, "nsa_gpu_memory_clock_hertz", "agent gpu name", "Clock of the GPU's memory."},
    {kGauge, "nsa_gpu_uncorrected_errors", "agent gpu name",
     "Uncorrectable memory errors since the driver was loaded."},
    {kGauge, "nsa_gpu_fault", "agent gpu name",
     "1 if no rank is placed on the GPU because of an error, otherwise 0."},
    {kGauge, "nsa_gpu_memory_bytes", "agent gpu name kind",
     "Memory of a GPU of a ready machine, total and used, by any process."},

    {kGauge, "nsa_job_info", "job_id name job_hash world_size device",
     "1; the labels say what the job is. 0 with a number of ranks that it had in an earlier "
     "start."},
    {kGauge, "nsa_job_gpu_info", "job_id rank agent uuid",
     "1 while the rank has the GPU, else 0; joins the figures of dcgm-exporter by UUID."},
    {kGauge, "nsa_job_state", "job_id state",
     "1 for the state the job is in, 0 for others that it was seen in."},
    {kGauge, "nsa_job_step", "job_id", "Last optimizer step done by rank 0."},
    {kGauge, "nsa_job_target_steps", "job_id", "Step the job ends at."},
    {kGauge, "nsa_job_val_set_loss", "job_id set",
     "Last loss on a set of data.val, nats per token."},
    {kGauge, "nsa_job_source_loss", "job_id source",
     "Loss of the last step's sequences of a source of data.mix, nats per token."},
    {kCounter, "nsa_job_source_rows_total", "job_id source",
     "Sequences of a source of data.mix over all ranks, repeated steps included."},
    {kGauge, "nsa_job_source_epoch", "job_id source", "Epoch of a source of data.mix, 0-based."},
    {kGauge, "nsa_job_tokens_per_second", "job_id",
     "Throughput over all ranks, exponential mean of about 20 steps."},
    {kCounter, "nsa_job_flops_total", "job_id",
     "Floating-point operations of the model, recomputation not included."},
    {kGauge, "nsa_job_mfu_ratio", "job_id",
     "Operations of the model per second divided by the dense bf16 rate in the data sheet of the "
     "job's GPUs; absent on the CPU."},
    {kGauge, "nsa_job_eta_seconds", "job_id", "Estimated time to the end; negative while unknown."},
    {kGauge, "nsa_job_goodput_ratio", "job_id",
     "Share of the time in which the job's ranks ran that went into steps and validations; "
     "repeated ones do not count."},
    {kHistogram, "nsa_job_step_duration_seconds", "job_id",
     "Duration of a step on rank 0, without validation and without waiting for checkpoints.",
     kStepSeconds},
    {kCounter, "nsa_job_phase_seconds_total", "job_id phase",
     "Time of rank 0 by phase: data, forward, backward, communication, optimizer, evaluation."},
    {kCounter, "nsa_job_restarts_total", "job_id",
     "Gangs that were lost; each is restarted unless the restart policy gives up."},
    {kGauge, "nsa_job_last_progress_timestamp_seconds", "job_id",
     "Unix time of the last step; after a start of the ranks, or a restart of the coordinator, the "
     "time of that, until a step is reported."},
    {kGauge, "nsa_job_first_step_timestamp_seconds", "job_id",
     "Unix time of the first step since the job last left the queue; after a restart of the "
     "coordinator the time of that restart."},
    {kGauge, "nsa_job_last_checkpoint_timestamp_seconds", "job_id",
     "Unix time of the last checkpoint."},
    {kGauge, "nsa_job_last_checkpoint_step", "job_id", "Step of the last checkpoint."},
    {kGauge, "nsa_job_checkpoint_interval_seconds", "job_id",
     "Expected time between checkpoints at the present speed; 0 when the job saves only at its "
     "end."},
    {kGauge, "nsa_job_checkpoint_bytes", "job_id", "Size of the last checkpoint."},
    {kHistogram, "nsa_job_checkpoint_duration_seconds", "job_id",
     "Time that writing a checkpoint took, in the background.", kCheckpointBuckets},
    {kCounter, "nsa_job_checkpoint_stall_seconds_total", "job_id",
     "Time that training waited for checkpoints."},
    {kGauge, "nsa_job_last_uploaded_checkpoint_step", "job_id",
     "Step of the last checkpoint at train.checkpoint_url."},
    {kCounter, "nsa_job_checkpoint_upload_failures_total", "job_id",
     "Uploads of a checkpoint that failed; they are tried again."},
    {kCounter, "nsa_job_checkpoints_total", "job_id", "Attempts to write a checkpoint."},
    {kCounter, "nsa_job_checkpoint_failures_total", "job_id",
     "Checkpoints that could not be written."},
    {kGauge, "nsa_job_waivers", "job_id", "Preflight rules that the job waives."},
    {kCounter, "nsa_fallbacks_total", "job_id kind",
     "Times the intended fast path was not taken, over all ranks."},

    {kGauge, "nsa_worker_up", "job_id rank", "1 while the rank's process runs, else 0."},
    {kGauge, "nsa_worker_step", "job_id rank", "Last step of the rank."},
    {kGauge, "nsa_worker_memory_bytes", "job_id rank kind",
     "Device memory allocated and reserved; on the CPU the resident set and its peak."},
    {kGauge, "nsa_worker_telemetry_failing", "job_id rank",
     "1 while files in out_dir or records of the rank are not written, else 0."},
    {kGauge, "nsa_worker_straggler_ratio", "job_id rank",
     "Busy time of the rank's last step over the mean of all ranks."},

    {kGauge, "nsa_job_health_problem", "job_id problem",
     "1 while a rule finds the run unhealthy (common/estimate/health.h), 0 once it no longer "
     "does."},
};

// The family that a quantity declares: a counter if its name says so, else a gauge.
constexpr FamilySpec FamilyOf(const record::Quantity& quantity) {
  const bool of_branch = quantity.series.label != nullptr;
  const char* labels = "job_id";
  if (quantity.of() == record::Of::kLayer)
    labels = of_branch ? "job_id layer branch" : "job_id layer";
  if (quantity.of() == record::Of::kGpu) labels = "agent gpu name";
  return {std::string_view(quantity.series.family).ends_with("_total") ? kCounter : kGauge,
          quantity.series.family, labels, quantity.series.help};
}

inline constexpr auto kFamilies = [] {
  constexpr auto kDeclares = [](const record::Quantity& one) { return one.series.help != nullptr; };
  constexpr auto kDeclared = std::ranges::count_if(record::kQuantities, kDeclares);
  std::array<FamilySpec, std::size(kOwnFamilies) + kDeclared> families = {};
  auto* next = std::ranges::copy(kOwnFamilies, families.begin()).out;
  for (const record::Quantity& quantity : record::kQuantities) {
    if (kDeclares(quantity)) *next++ = FamilyOf(quantity);
  }
  return families;
}();

// One family of the table, found by its name when the program is compiled: a name that is not in
// the table, or is there as another kind, does not compile.
template <MetricKind kind>
class Family {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): so that a literal is enough.
  consteval Family(const char* name) : index_(Find(name)) {}

  constexpr size_t index() const { return index_; }
  constexpr const FamilySpec& spec() const { return kFamilies[index_]; }

 private:
  static consteval size_t Find(std::string_view name) {
    for (size_t i = 0; i < std::size(kFamilies); ++i) {
      if (kFamilies[i].kind == kind && name == kFamilies[i].name) return i;
    }
    throw "no such metric of this kind in kFamilies";
  }

  size_t index_;
};

using GaugeFamily = Family<kGauge>;
using CounterFamily = Family<kCounter>;
using HistogramFamily = Family<kHistogram>;

}  // namespace nsa::server
