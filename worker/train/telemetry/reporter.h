// Everything a rank says while it trains goes through its Reporter: to the step journal (where
// there is an agent to read it), to the files of out_dir, and for rank 0 to the log.
//
// A record goes to the journal at once, with one write(2). The files are written by a thread from a
// bounded queue, so a slow disk never delays a step: when the queue is full the record is left out
// of the files (not of the journal) and counted in `telemetry_dropped` of metrics.json. What a file
// refuses (a full disk) is counted too. What the journal refuses waits in memory, a thousand
// records, and is appended in its order once there is room.
//
// Why something is not written is told as the event TELEMETRY_FAILED, each reason once, and by
// trouble() for as long as it lasts; so is a file or an out_dir that was exchanged for another,
// with the next validation, checkpoint or end. TELEMETRY_RESTORED says when all is written again,
// and what is missing.
//
// Files, by worker/train/telemetry/files.h: every rank heartbeat_rank{r}.jsonl; rank 0 also
// training.csv, val.csv, fallback_counters.csv, k_stats.csv, env.json, metrics.json and tb/.
// Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/reason.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/folder.h"

namespace nsa {

struct ReporterOptions {
  v1::JobSpec spec;  // with its defaults
  Folder out_dir;    // where the files go; without one there are none
  std::string job_id;
  int64_t generation = 0;
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string device;  // for people, with its libraries
  // Rows of later steps are removed from the files first: a run that was resumed from step N writes
  // N+1 … again. The largest int64_t removes nothing, for a start that failed before its first
  // step.
  int64_t resumed_step = 0;
  // The lowest validation loss up to there, and its step; step 0: none yet.
  double best_val_loss = 0;
  int64_t best_val_step = 0;
  // Empty without an agent.
  std::filesystem::path journal;
  // How long nothing must have failed before all counts as written again.
  absl::Duration calm = absl::Seconds(10);
};

class Reporter {
 public:
  // Makes the journal, opens the files and writes env.json.
  static absl::StatusOr<std::unique_ptr<Reporter>> Open(const ReporterOptions& options);

  // Flushes.
  ~Reporter();

  void Started(const v1::WorkerStarted& started);
  void Step(const v1::StepRecord& step);
  void Eval(const v1::EvalRecord& eval);
  void Checkpoint(const v1::CheckpointRecord& checkpoint);
  void Event(const v1::WorkerEvent& event);
  void Event(Reason reason, const std::string& text, v1::Severity severity);

  // Waits until the files have every record reported so far, for ten seconds at most.
  void Flush();

  // The last words: writes metrics.json, flushes the files, then appends WorkerFinished to the
  // journal.
  void Finished(const v1::WorkerFinished& finished);

  // Records that the files do not have because the queue was full or a write failed.
  int64_t dropped() const;

  // Why files or journal are not written now, `what: value (limit); what to do`; empty when they
  // are.
  std::string trouble() const;

 private:
  class Impl;
  explicit Reporter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa
