// What keeps a queued job from being placed although there is room: the jobs that it waits for
// (JobSpec.after) and its time (JobSpec.not_before). A held job is not in line: nobody waits behind
// it, and it wants no slots. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

struct Hold {
  std::string reason;  // DEPENDENCY_NEVER_SATISFIED, WAITING_FOR_JOBS or WAITING_FOR_TIME
  std::string text;
};

// Why a queued job may not be placed now; nothing if it may.
std::optional<Hold> HoldOf(const v1::Job& job);

// What has become of a job that another one waits for; null: it was deleted. One that its
// sweep has paused has not ended.
v1::Predecessor::State FateOf(const v1::StoredJob* awaited);

// Whether there is something for NoteFates() to note.
bool IsNews(const std::vector<v1::Predecessor::State>& fates, absl::Time now, const v1::Job& job);

// Notes the fates of the jobs that a queued, held job waits for, one for each of Job.after, and
// whether its time has come. Adds an event for each that ended or came back, and one when nothing
// holds the job any more: it then enters the queue as if it had been submitted at that time. `now`:
// the wall clock.
void NoteFates(const std::vector<v1::Predecessor::State>& fates, absl::Time now,
               v1::StoredJob* stored, std::vector<v1::JobEvent>* events);

}  // namespace nsa::server
