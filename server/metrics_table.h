// Every Prometheus family of the coordinator in one table: name, help, labels. Base units; a family
// with job_id loses its series five minutes after the job has ended, or when it is deleted.
#pragma once

#include <cstddef>

namespace nsa::server {

enum class MetricKind { kGauge, kCounter, kHistogram };

enum class FamilyId {
  // The coordinator.
  kBuildInfo,
  kStartTime,
  kRpcRequests,
  kRpcDuration,
  kRpcStreams,
  kStoreCommit,
  kStoreErrors,
  kJobs,
  kJobsSubmitted,
  kJobsFinished,
  kJobsDeleted,
  kQueueWait,
  kWaivers,
  // Machines.
  kSlots,
  kAgentUp,
  kGpuMemory,
  // A job.
  kJobInfo,
  kJobGpuInfo,
  kJobState,
  kJobStep,
  kJobTargetSteps,
  kJobLoss,
  kJobValLoss,
  kJobGradNorm,
  kJobLearningRate,
  kJobTokens,
  kJobSpeed,
  kJobFlops,
  kJobMfu,
  kJobEta,
  kJobGoodput,
  kJobStepDuration,
  kJobPhase,
  kJobNonfinite,
  kJobDataEpoch,
  kJobRestarts,
  kJobProgress,
  kJobCheckpointTime,
  kJobCheckpointStep,
  kJobCheckpointInterval,
  kJobCheckpointBytes,
  kJobCheckpointDuration,
  kJobCheckpointStall,
  kJobCheckpoints,
  kJobCheckpointFailures,
  kJobWaivers,
  kFallbacks,
  // A rank.
  kWorkerUp,
  kWorkerStep,
  kWorkerMemory,
  kWorkerTelemetryFailing,
  kWorkerStraggler,
  // A layer.
  kGateEntropyMean,
  kGateEntropyMin,
  kGateMaxMean,
  kGateMaxMax,
  kGateCollapse,
  kGateShare,
  kSelectionKeysMean,
  kSelectionKeysMax,
  kSelectionAtMax,
  kKeysRead,
  kKeysExpected,
  kCount,
};

struct FamilySpec {
  FamilyId id;
  MetricKind kind;
  const char* name;
  const char* labels;  // for people
  const char* help;
};

inline constexpr auto kGauge = MetricKind::kGauge;
inline constexpr auto kCounter = MetricKind::kCounter;
inline constexpr auto kHistogram = MetricKind::kHistogram;

// In the order of FamilyId.
inline constexpr FamilySpec kFamilies[] = {
    {FamilyId::kBuildInfo, kGauge, "nsa_build_info", "version revision grpc",
     "Always 1; the labels say what runs."},
    {FamilyId::kStartTime, kGauge, "nsa_coordinator_start_time_seconds", "",
     "Unix time at which the coordinator started."},
    {FamilyId::kRpcRequests, kCounter, "nsa_rpc_requests_total", "method code",
     "Calls that have ended."},
    {FamilyId::kRpcDuration, kHistogram, "nsa_rpc_duration_seconds", "method",
     "Duration of unary calls; streams are not in it."},
    {FamilyId::kRpcStreams, kGauge, "nsa_rpc_streams_active", "method", "Streams open now."},
    {FamilyId::kStoreCommit, kHistogram, "nsa_store_commit_duration_seconds", "",
     "Duration of a commit to the job store, fsync included."},
    {FamilyId::kStoreErrors, kCounter, "nsa_store_errors_total", "op",
     "Operations of the job store that failed."},
    {FamilyId::kJobs, kGauge, "nsa_jobs", "state", "Jobs in the store."},
    {FamilyId::kJobsSubmitted, kCounter, "nsa_jobs_submitted_total", "", "Jobs accepted."},
    {FamilyId::kJobsFinished, kCounter, "nsa_jobs_finished_total", "result reason",
     "Jobs that have ended."},
    {FamilyId::kJobsDeleted, kCounter, "nsa_jobs_deleted_total", "cause",
     "Ended jobs that were deleted, asked by a user or after job_retention_days (retention)."},
    {FamilyId::kQueueWait, kHistogram, "nsa_queue_wait_seconds", "",
     "Time from entering the queue to the start."},
    {FamilyId::kWaivers, kCounter, "nsa_preflight_waivers_total", "rule",
     "Preflight rules that accepted jobs waived."},

    {FamilyId::kSlots, kGauge, "nsa_slots", "kind state",
     "Slots of the ready machines: cpu or gpu, free or allocated."},
    {FamilyId::kAgentUp, kGauge, "nsa_agent_up", "agent",
     "1 while the agent's heartbeats arrive, else 0."},
    {FamilyId::kGpuMemory, kGauge, "nsa_gpu_memory_bytes", "agent gpu name kind",
     "Memory of a GPU of a ready machine, total and used, whoever uses it."},

    {FamilyId::kJobInfo, kGauge, "nsa_job_info", "job_id name job_hash world_size device",
     "Always 1; the labels say what the job is."},
    {FamilyId::kJobGpuInfo, kGauge, "nsa_job_gpu_info", "job_id rank agent uuid",
     "1 while the rank has the GPU, else 0; joins the figures of dcgm-exporter by UUID."},
    {FamilyId::kJobState, kGauge, "nsa_job_state", "job_id state",
     "1 for the state the job is in, 0 for others that it was seen in."},
    {FamilyId::kJobStep, kGauge, "nsa_job_step", "job_id", "Last optimizer step done by rank 0."},
    {FamilyId::kJobTargetSteps, kGauge, "nsa_job_target_steps", "job_id", "Step the job ends at."},
    {FamilyId::kJobLoss, kGauge, "nsa_job_loss", "job_id",
     "Training loss of the last step, nats a token."},
    {FamilyId::kJobValLoss, kGauge, "nsa_job_val_loss", "job_id",
     "Last validation loss, nats a token."},
    {FamilyId::kJobGradNorm, kGauge, "nsa_job_grad_norm", "job_id",
     "Global gradient norm before clipping."},
    {FamilyId::kJobLearningRate, kGauge, "nsa_job_learning_rate", "job_id",
     "Learning rate of the last step."},
    {FamilyId::kJobTokens, kCounter, "nsa_job_tokens_total", "job_id",
     "Predicted tokens over all ranks, steps done again included."},
    {FamilyId::kJobSpeed, kGauge, "nsa_job_tokens_per_second", "job_id",
     "Throughput over all ranks, exponential mean of about 20 steps."},
    {FamilyId::kJobFlops, kCounter, "nsa_job_flops_total", "job_id",
     "Floating-point operations of the model, recomputation not included."},
    {FamilyId::kJobMfu, kGauge, "nsa_job_mfu_ratio", "job_id",
     "Operations of the model a second over the dense bf16 rate that the data sheet of the job's "
     "GPUs says; absent on the CPU."},
    {FamilyId::kJobEta, kGauge, "nsa_job_eta_seconds", "job_id",
     "Estimated time to the end; negative while unknown."},
    {FamilyId::kJobGoodput, kGauge, "nsa_job_goodput_ratio", "job_id",
     "Share of the time since the first start that went into steps and validations that count; "
     "what "
     "a failure cost does not."},
    {FamilyId::kJobStepDuration, kHistogram, "nsa_job_step_duration_seconds", "job_id",
     "Duration of a step on rank 0; validation and standing still for checkpoints are not in it."},
    {FamilyId::kJobPhase, kCounter, "nsa_job_phase_seconds_total", "job_id phase",
     "Time of rank 0 by phase: data, forward, backward, communication, optimizer, evaluation."},
    {FamilyId::kJobNonfinite, kCounter, "nsa_job_nonfinite_steps_total", "job_id",
     "Steps whose update was skipped because loss or gradient were not finite."},
    {FamilyId::kJobDataEpoch, kGauge, "nsa_job_data_epoch", "job_id",
     "Epoch of the data, 0-based."},
    {FamilyId::kJobRestarts, kCounter, "nsa_job_restarts_total", "job_id",
     "Gangs that were lost; each starts again unless the restart policy says no."},
    {FamilyId::kJobProgress, kGauge, "nsa_job_last_progress_timestamp_seconds", "job_id",
     "Unix time of the last step; until the first step that this coordinator hears of, of its "
     "start."},
    {FamilyId::kJobCheckpointTime, kGauge, "nsa_job_last_checkpoint_timestamp_seconds", "job_id",
     "Unix time of the last checkpoint."},
    {FamilyId::kJobCheckpointStep, kGauge, "nsa_job_last_checkpoint_step", "job_id",
     "Step of the last checkpoint."},
    {FamilyId::kJobCheckpointInterval, kGauge, "nsa_job_checkpoint_interval_seconds", "job_id",
     "Expected time between checkpoints at the present speed; 0 when the job saves only at its "
     "end."},
    {FamilyId::kJobCheckpointBytes, kGauge, "nsa_job_checkpoint_bytes", "job_id",
     "Size of the last checkpoint."},
    {FamilyId::kJobCheckpointDuration, kHistogram, "nsa_job_checkpoint_duration_seconds", "job_id",
     "Time that writing a checkpoint took, in the background."},
    {FamilyId::kJobCheckpointStall, kCounter, "nsa_job_checkpoint_stall_seconds_total", "job_id",
     "Time that training stood still for checkpoints."},
    {FamilyId::kJobCheckpoints, kCounter, "nsa_job_checkpoints_total", "job_id",
     "Checkpoints that were tried."},
    {FamilyId::kJobCheckpointFailures, kCounter, "nsa_job_checkpoint_failures_total", "job_id",
     "Checkpoints that could not be written."},
    {FamilyId::kJobWaivers, kGauge, "nsa_job_waivers", "job_id",
     "Preflight rules that the job waives."},
    {FamilyId::kFallbacks, kCounter, "nsa_fallbacks_total", "job_id kind",
     "Times the intended fast path was not taken, over all ranks."},

    {FamilyId::kWorkerUp, kGauge, "nsa_worker_up", "job_id rank",
     "1 while the rank's process runs, else 0."},
    {FamilyId::kWorkerStep, kGauge, "nsa_worker_step", "job_id rank", "Last step of the rank."},
    {FamilyId::kWorkerMemory, kGauge, "nsa_worker_memory_bytes", "job_id rank kind",
     "Device memory allocated and reserved; on the CPU the resident set and its peak."},
    {FamilyId::kWorkerTelemetryFailing, kGauge, "nsa_worker_telemetry_failing", "job_id rank",
     "1 while files in out_dir or records of the rank are not written, else 0."},
    {FamilyId::kWorkerStraggler, kGauge, "nsa_worker_straggler_ratio", "job_id rank",
     "Busy time of the rank's last step over the mean of all ranks."},

    {FamilyId::kGateEntropyMean, kGauge, "nsa_gate_entropy", "job_id layer",
     "Mean entropy of the gates, nats; ln 3 when the branches share equally."},
    {FamilyId::kGateEntropyMin, kGauge, "nsa_gate_entropy_min", "job_id layer",
     "Smallest entropy of a gate, nats."},
    {FamilyId::kGateMaxMean, kGauge, "nsa_gate_max_mean", "job_id layer",
     "Mean of the largest gate of each row."},
    {FamilyId::kGateMaxMax, kGauge, "nsa_gate_max", "job_id layer", "Largest gate of all."},
    {FamilyId::kGateCollapse, kGauge, "nsa_gate_collapse_ratio", "job_id layer",
     "Share of gates that have collapsed to one branch."},
    {FamilyId::kGateShare, kGauge, "nsa_gate_share_ratio", "job_id layer branch",
     "Mean share of a branch."},
    {FamilyId::kSelectionKeysMean, kGauge, "nsa_selection_keys_mean", "job_id layer",
     "Mean selected keys of a query."},
    {FamilyId::kSelectionKeysMax, kGauge, "nsa_selection_keys_max", "job_id layer",
     "Most selected keys of a query."},
    {FamilyId::kSelectionAtMax, kGauge, "nsa_selection_at_max_ratio", "job_id layer",
     "Share of queries that select as many keys as possible."},
    {FamilyId::kKeysRead, kGauge, "nsa_keys_read", "job_id layer branch",
     "Keys read in the last step of rank 0, counted by the kernels."},
    {FamilyId::kKeysExpected, kGauge, "nsa_keys_expected", "job_id layer branch",
     "The same from the formula."},
};
static_assert(sizeof(kFamilies) / sizeof(kFamilies[0]) == static_cast<size_t>(FamilyId::kCount));

}  // namespace nsa::server
