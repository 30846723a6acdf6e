// Forwards one worker's journal and log to the coordinator without loss or duplicates: the
// coordinator says which record it wants next. The agent's own note of its progress (reported.json)
// only saves it from reading a long journal again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/run/journal.h"
#include "common/run/run_dir.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "worker/agent/link/link.h"
#include "worker/agent/rank_key.h"

namespace nsa::agent {

// Not thread-safe, except for Cancel() and saw_started().
class Reporter {
 public:
  // The link lives longer.
  Reporter(RankKey key, RunDir dir, Link* link);

  enum class Result {
    kComplete,  // the coordinator has, or has refused for good, everything written before the call
    kMore,      // more of the log is left for the next call
    kFailed,    // something failed; the next call tries again
  };

  // Reads new records of the journal. True when they should be sent now: one of them is not a step
  // record, or there are enough for a full batch.
  bool Look();

  // Sends the new records in batches, and the log once a second. `log_patience` is set once the
  // worker has ended: the log is then sent at once, and given up when the coordinator has refused
  // it for so long. An unreachable coordinator is waited for, and one that has another job store.
  Result Pump(std::optional<absl::Duration> log_patience);

  // Ends a Pump() in progress on another thread; later calls send nothing.
  void Cancel();

  // What the journal has said so far, including the part that an earlier agent read.
  bool saw_started() const { return saw_started_; }
  std::optional<v1::Outcome> outcome() const { return outcome_; }

 private:
  bool PumpRecords();
  // Asks the coordinator where to begin; false when it does not answer.
  bool Begin();
  Result PumpLog(std::optional<absl::Duration> patience);
  // Whether the log has been refused for so long, or for good. Says what is lost.
  bool GivesUpLog(const absl::Status& status, std::optional<absl::Duration> patience);
  // Logs that the log cannot be read, once until it can be read again.
  void NoticeLog(const absl::Status& read);
  // Looks for the start record: a worker counts as running once it is in the journal, reported or
  // not.
  void LookForStart();
  // Fills batch_ from the journal; false when there is nothing to send.
  bool FillBatch();
  void ClearBatch();
  void Notice(const v1::WorkerRecord& record);
  // Continues at record `sequence`. Reads the journal from its beginning when that record has
  // already been read.
  void Seek(int64_t sequence);
  void LoadProgress();
  void SaveProgress();
  // Records and log are reported, and refused, independently.
  struct Refusal {
    const char* what;
    bool answered = false;                               // the last error was an answer
    absl::Duration said_at = -absl::InfiniteDuration();  // RealClock().Monotonic()
    bool standing = false;                               // said, and not accepted since
  };
  // True when trying again cannot help. Says why a report failed, now and then.
  bool IsFinal(const absl::Status& status, Refusal* refusal);
  // Says that what was refused is accepted again.
  void Accepted(Refusal* refusal);

  const RankKey key_;
  const RunDir dir_;
  Caller caller_;

  std::unique_ptr<JournalReader> journal_;
  bool from_note_ = false;  // reading began at the offset in reported.json
  bool begun_ = false;
  int64_t next_sequence_ = 1;  // the record that the coordinator wants next, as far as known
  int64_t unread_ = 1;         // the record that journal_ returns next
  v1::ReportRecordsRequest batch_;
  bool urgent_ = false;        // batch_ holds a record other than a step's
  bool records_over_ = false;  // the journal is damaged, or refused for good
  int64_t log_offset_ = 0;
  bool log_over_ = false;
  bool missed_log_ = false;  // the last read of the log failed
  Refusal records_refusal_ = {.what = "records"};
  Refusal log_refusal_ = {.what = "log"};
  std::optional<absl::Duration> log_refused_since_;  // since the worker's end
  absl::Duration next_log_;                          // RealClock().Monotonic()
  std::atomic<bool> saw_started_ = false;
  std::optional<v1::Outcome> outcome_;
  std::string saved_progress_;
  absl::Duration saved_at_ = -absl::InfiniteDuration();  // RealClock().Monotonic()
};

}  // namespace nsa::agent
