// Passes traces of ranks from agents to the people who asked for them (`nsactl profile`, the page).
// The reply to a heartbeat carries the order, ReportProfile the trace in parts, and a stream takes
// them. Of each rank at most one part is in memory: an agent sends the next one when the reader has
// taken the last one.
//
// A job is profiled for one caller at a time. A rank that is silent for kSilence counts as not
// answering. When a rank gave no trace the others may never begin, because they begin together:
// those that have not sent anything kSilence later are not awaited.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// Thread-safe.
class ProfileBroker {
 public:
  static constexpr size_t kMostProfiles = 8;  // at the same time, of all jobs
  static constexpr int32_t kMostSteps = 100;
  static constexpr size_t kMostPartBytes = 1 << 20;
  static constexpr int64_t kMostBytes = int64_t{64} << 20;  // of one rank's trace
  static constexpr absl::Duration kSilence = absl::Seconds(30);

  // `changed` is called, without a lock, with a job for which Next() has something new.
  ProfileBroker(const Clock& clock, std::function<void(const std::string& job_id)> changed)
      : clock_(clock), changed_(std::move(changed)) {}

  // Orders a trace of `steps` steps of every rank of the job's current generation. Returns its id.
  // InvalidArgument for a wrong number of steps; AlreadyExists while the job is profiled;
  // ResourceExhausted when kMostProfiles are.
  absl::StatusOr<std::string> Begin(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks,
                                    int64_t steps);

  // The orders for a machine. An order is repeated until its trace has arrived.
  std::vector<v1::ProfileOrder> Wanted(const std::string& node) const;

  // The machine that may report this rank; empty when nobody waits for it.
  std::string NodeOf(const std::string& profile_id, int32_t rank) const;

  // Takes a part of a trace, a sign of life (size 0 and no error), or an error. What breaks the
  // rules becomes the rank's error.
  v1::ReportProfileResponse Report(const v1::ReportProfileRequest& report);

  // The next message for the caller; nothing when there is none yet. OutOfRange when all ranks have
  // been passed on.
  absl::StatusOr<std::optional<v1::ProfileJobResponse>> Next(const std::string& profile_id);

  // What has been passed on.
  struct Summary {
    int32_t steps = 0;
    int32_t traces = 0;
    int64_t bytes = 0;
    std::vector<std::string> errors;  // "rank 1: …"
  };
  Summary SummaryOf(const std::string& profile_id) const;

  // Nobody waits for it any more.
  void End(const std::string& profile_id);

  // Notices ranks that do not answer. Called regularly.
  void Expire();

 private:
  struct Part {
    int32_t rank = 0;
    std::string node;
    absl::Duration heard;  // monotonic: when its agent last spoke of it
    int64_t size = 0;
    int64_t received = 0;
    std::string data;   // the end of what was received, which the reader has not taken
    std::string error;  // why there is no trace
    bool passed_on = false;

    bool arrived() const { return !error.empty() || (size > 0 && received == size); }
  };
  struct Profile {
    std::string job_id;
    int64_t generation = 0;
    int32_t steps = 0;
    std::vector<Part> parts;
    std::optional<absl::Duration> failed;  // monotonic: when the first rank gave no trace
  };
  static void Take(const v1::ReportProfileRequest& report, Part* part);

  const Clock& clock_;
  const std::function<void(const std::string& job_id)> changed_;
  mutable Mutex mutex_;
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Profile> profiles_ ABSL_GUARDED_BY(mutex_);  // by id
};

}  // namespace nsa::server
