// Forwards one worker's journal and log to the coordinator, so that nothing is lost or doubled:
// what the coordinator says it wants next decides; the agent's own note of its progress
// (reported.json) only saves reading a long journal again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/run/journal.h"
#include "common/run/run_dir.h"
#include "nsa/v1/fleet.grpc.pb.h"

namespace nsa::agent {

// Which worker: unique on a machine, and for ever.
struct RankKey {
  std::string job_id;
  int64_t generation = 0;
  int rank = 0;
  auto operator<=>(const RankKey&) const = default;
  std::string ToString() const;  // "job j3k generation 2 rank 0"
};

// Not thread-safe but for Cancel() and saw_started().
class Reporter {
 public:
  // `stub` and `token` belong to the caller and live longer.
  Reporter(RankKey key, RunDir dir, v1::FleetService::StubInterface* stub, std::string token);

  enum class Result {
    kComplete,  // the coordinator has, or refuses for good, all that the files held at the call
    kMore,      // some megabytes of log are left for the next call
    kFailed,    // something failed and is tried again by the next call
  };

  // Reads what the journal has meanwhile. True when that should be sent now: there is a record
  // other than a step's, or enough for a batch.
  bool Look();

  // Sends what is there, in batches; the log once a second, or when this is the `last` call.
  Result Pump(bool last);

  // Ends a Pump() in progress on another thread, and makes later ones do nothing.
  void Cancel();

  // What the journal said as far as it was read, in this life of the agent or an earlier one.
  bool saw_started() const { return saw_started_; }
  std::optional<v1::Outcome> outcome() const { return outcome_; }

 private:
  bool PumpRecords();
  // Asks where to begin; false when the answer cannot be had now.
  bool Begin();
  Result PumpLog();
  // Says that the log cannot be read, once until it can be again.
  void NoticeLog(const absl::Status& read);
  // A worker counts as running as soon as its journal says so, reported or not.
  void LookForStart();
  // Fills batch_ from the journal; false when there is nothing to send.
  bool FillBatch();
  void ClearBatch();
  void Notice(const v1::WorkerRecord& record);
  // Goes on at `sequence`; back to the beginning of the journal when it lies behind.
  void Seek(int64_t sequence);
  void LoadProgress();
  void SaveProgress();
  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response* response);
  // True when this error will not go away.
  bool IsFinal(const absl::Status& status, std::string_view what);

  const RankKey key_;
  const RunDir dir_;
  v1::FleetService::StubInterface* const stub_;
  const std::string token_;

  std::unique_ptr<JournalReader> journal_;
  bool from_note_ = false;  // the journal is read from an offset that reported.json said
  bool begun_ = false;
  int64_t next_sequence_ = 1;  // what the coordinator wants next, as far as is known
  int64_t unread_ = 1;         // what journal_ returns next
  v1::ReportRecordsRequest batch_;
  bool urgent_ = false;        // batch_ holds more than steps
  bool records_over_ = false;  // damaged, or refused for good
  int64_t log_offset_ = 0;
  bool log_over_ = false;
  bool missed_log_ = false;  // it could not be read the last time
  absl::Duration next_log_;  // RealClock().Monotonic()
  std::atomic<bool> saw_started_ = false;
  std::optional<v1::Outcome> outcome_;
  std::string saved_progress_;
  absl::Time saved_at_ = absl::InfinitePast();

  Mutex mutex_;
  grpc::ClientContext* in_flight_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace nsa::agent
