#include "server/decide/queue/hold.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/reason.h"
#include "common/base/utc_text.h"
#include "server/decide/job_event.h"
#include "server/decide/lifecycle.h"
#include "server/decide/sweep/halving.h"

namespace nsa::server {
namespace {

using v1::Predecessor;

std::string Named(const Predecessor& one) { return absl::StrCat(one.name(), " (", one.id(), ")"); }

// Why `job` waits in vain, and what helps.
std::string NeverText(const v1::Job& job, const Predecessor& one) {
  if (one.state() == Predecessor::STATE_DELETED) {
    return absl::StrCat("job ", Named(one),
                        " was deleted before it had finished; stop this job, and resume it without "
                        "that one to train it all the same (`nsactl resume ",
                        job.id(), " --set after=[]`)");
  }
  return absl::StrCat("job ", Named(one), " failed or was stopped; resume it (`nsactl resume ",
                      one.id(), "`), or stop this job");
}

bool NeverDone(Predecessor::State state) {
  return state == Predecessor::STATE_ENDED || state == Predecessor::STATE_DELETED;
}

void AddFateEvent(const v1::Job& job, Predecessor::State before, const Predecessor& one,
                  std::vector<v1::JobEvent>* events) {
  if (NeverDone(one.state())) {
    events->push_back(
        EventOf(Reason::kDependencyNeverSatisfied, NeverText(job, one), v1::SEVERITY_WARNING));
  } else if (NeverDone(before) && one.state() == Predecessor::STATE_AWAITED) {
    events->push_back(
        EventOf(Reason::kWaitingForJobs,
                absl::StrCat("job ", Named(one), " was resumed; this one waits for it again")));
  }
}

}  // namespace

std::optional<Hold> HoldOf(const v1::Job& job) {
  std::vector<std::string> awaited;
  for (const Predecessor& one : job.after()) {
    if (NeverDone(one.state())) {
      return Hold{Word(Reason::kDependencyNeverSatisfied), NeverText(job, one)};
    }
    if (one.state() == Predecessor::STATE_AWAITED) awaited.push_back(Named(one));
  }
  const std::string time = job.not_before_unix_nanos() == 0
                               ? ""
                               : absl::StrCat("not before ", UtcText(job.not_before_unix_nanos()));
  if (awaited.empty()) {
    return time.empty() ? std::nullopt : std::optional(Hold{Word(Reason::kWaitingForTime), time});
  }
  return Hold{Word(Reason::kWaitingForJobs),
              absl::StrCat("until ", absl::StrJoin(awaited, ", "),
                           awaited.size() == 1 ? " has finished" : " have finished",
                           time.empty() ? "" : "; ", time)};
}

Predecessor::State FateOf(const v1::StoredJob* awaited) {
  if (awaited == nullptr) return Predecessor::STATE_DELETED;
  const v1::Job& job = awaited->job();
  if (job.state() == v1::Job::STATE_SUCCEEDED) return Predecessor::STATE_DONE;
  if (!IsTerminal(job.state())) return Predecessor::STATE_AWAITED;
  return IsPaused(*awaited) ? Predecessor::STATE_AWAITED : Predecessor::STATE_ENDED;
}

bool IsNews(const std::vector<Predecessor::State>& fates, absl::Time now, const v1::Job& job) {
  for (int i = 0; i < job.after_size(); ++i) {
    const Predecessor::State known = job.after(i).state();
    if (known != Predecessor::STATE_DONE && known != fates.at(i)) return true;
  }
  return job.not_before_unix_nanos() != 0 && absl::ToUnixNanos(now) >= job.not_before_unix_nanos();
}

void NoteFates(const std::vector<Predecessor::State>& fates, absl::Time now, v1::StoredJob* stored,
               std::vector<v1::JobEvent>* events) {
  v1::Job& job = *stored->mutable_job();
  for (int i = 0; i < job.after_size(); ++i) {
    Predecessor& one = *job.mutable_after(i);
    const Predecessor::State before = one.state();
    if (before == Predecessor::STATE_DONE || before == fates.at(i)) continue;
    one.set_state(fates.at(i));
    AddFateEvent(job, before, one, events);
  }
  if (absl::ToUnixNanos(now) >= job.not_before_unix_nanos()) job.clear_not_before_unix_nanos();
  if (HoldOf(job).has_value()) return;
  stored->set_queued_unix_nanos(absl::ToUnixNanos(now));
  std::vector<std::string> why;
  if (!job.after().empty()) why.push_back("the jobs that it waited for have finished");
  if (!job.spec().not_before().empty()) why.push_back("its time has come");
  events->push_back(EventOf(Reason::kReleased, absl::StrJoin(why, ", and ")));
}

}  // namespace nsa::server
