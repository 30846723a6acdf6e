// A rank reports everything through its Reporter, which writes it to the step journal (if there is
// an agent to read it), to the files of out_dir, and to the log. Ranks other than 0 log only events
// and the end of the run.
//
// A record is written to the journal at once, with one write(2). A thread writes the files from a
// bounded queue, so a slow disk never delays a step. When the queue is full, the record is left out
// of the files (not of the journal) and counted in `telemetry_dropped` of metrics.json. Rows that
// cannot be written, e.g. because the disk is full, are counted there, too. Records that cannot be
// written to the journal wait in memory, at most 1,024, and are appended in order as soon as there
// is room.
//
// When something cannot be written, an event TELEMETRY_FAILED says why, once per reason, and
// error() returns the text as long as the failure lasts. The same happens when out_dir or a file
// in it has been replaced by another one, which is checked with each validation, each checkpoint
// and the end. TELEMETRY_RESTORED says that everything is written again, and how much is missing.
//
// Files (worker/train/telemetry/files.h): every rank writes heartbeat_rank{r}.jsonl; rank 0 also
// training.csv, val.csv, fallback_counters.csv, k_stats.csv, attention_audit.csv, samples.jsonl,
// env.json, metrics.json and tb/.
// Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/environment.h"
#include "common/base/reason.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/folder.h"

namespace nsa::train {

struct ReporterOptions {
  v1::JobSpec spec;  // with its defaults filled in
  Folder out_dir;    // where the files are written; if not valid(), there are none
  std::string job_id;
  int64_t generation = 0;
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string device;  // description of the device and its libraries, human-readable
  std::vector<ReplacedVariable> nccl_replaced;  // for env.json
  // Rows of later steps are first removed from the files, because a run that resumes from step N
  // writes N+1 … again. The largest int64_t removes nothing; it is for a start that failed before
  // its first step.
  int64_t resumed_step = 0;
  // The lowest validation loss up to that step, and its step; step 0: none yet.
  double best_val_loss = 0;
  int64_t best_val_step = 0;
  // Path of the step journal; empty without an agent.
  std::filesystem::path journal;
  // Telemetry counts as restored when no write has failed for this long.
  absl::Duration restored_after = absl::Seconds(10);
};

class Reporter {
 public:
  // Creates the journal, opens the files and writes env.json.
  static absl::StatusOr<std::unique_ptr<Reporter>> Open(const ReporterOptions& options);

  // Waits until the files have every record.
  ~Reporter();

  void Started(const v1::WorkerStarted& started);
  void Step(const v1::StepRecord& step);
  void Eval(const v1::EvalRecord& eval);
  void Sample(const v1::SampleRecord& sample);
  void Checkpoint(const v1::CheckpointRecord& checkpoint);
  void Upload(const v1::UploadRecord& upload);
  void Event(const v1::WorkerEvent& event);
  void Event(Reason reason, const std::string& text, v1::Severity severity);

  // Waits until the files have every record reported so far, but ten seconds at most.
  void Flush();

  // Reports the end of the run: writes metrics.json, flushes the files, then appends WorkerFinished
  // to the journal.
  void Finished(const v1::WorkerFinished& finished);

  // Number of records that are missing in the files because the queue was full or a write failed.
  int64_t dropped() const;

  // Why files or journal cannot be written now, as `what: value (limit); what to do`; empty when
  // they can.
  std::string error() const;

 private:
  class Impl;
  explicit Reporter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa::train
