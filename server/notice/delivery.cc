#include "server/notice/delivery.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/thread_name.h"

namespace nsa::server {
namespace {

// Events that are read at once; what they take in memory is bounded by it.
constexpr int kLook = 32;

int64_t Last(std::span<const Telling> tellings) { return tellings.back().event.sequence(); }

// "event 17" or "events 17 to 20".
std::string Which(std::span<const Telling> tellings) {
  const int64_t first = tellings.front().event.sequence();
  return tellings.size() == 1 ? absl::StrCat("event ", first)
                              : absl::StrCat("events ", first, " to ", Last(tellings));
}

}  // namespace

std::string ToldWord(Told told) {
  if (told == Told::kDelivered) return "delivered";
  return told == Told::kRefused ? "refused" : "given_up";
}

void NoticeBell::Ring() {
  const MutexLock lock(&mutex_);
  ++rings_;
  rung_.SignalAll();
}

void NoticeBell::Stop() {
  const MutexLock lock(&mutex_);
  stopped_ = true;
  rung_.SignalAll();
  stop_.SignalAll();
}

int64_t NoticeBell::rings() const {
  const MutexLock lock(&mutex_);
  return rings_;
}

bool NoticeBell::WaitForRing(int64_t rings) {
  const MutexLock lock(&mutex_);
  while (!stopped_ && rings_ <= rings) rung_.Wait(&mutex_);
  return !stopped_;
}

bool NoticeBell::Sleep(absl::Duration pause) {
  const RealClock clock;
  const absl::Duration end = clock.Monotonic() + pause;
  const MutexLock lock(&mutex_);
  while (!stopped_) {
    const absl::Duration left = end - clock.Monotonic();
    if (left <= absl::ZeroDuration()) return true;
    stop_.WaitFor(&mutex_, left);
  }
  return false;
}

Delivery::Delivery(const Notice& notice, Parts parts)
    : notice_(notice), parts_(std::move(parts)), done_(parts_.progress.Done(notice.name)) {}

void Delivery::Run() {
  NameThread("notice");
  while (!parts_.bell.stopped() && Step()) continue;
}

// One look at the store, and at most one message. False when the coordinator ends.
bool Delivery::Step() {
  const int64_t rings = parts_.bell.rings();
  const auto events = parts_.store.Events("", done_, kLook);
  if (!events.ok()) return StoreFailed(events.status());
  const std::vector<Telling> tellings = Pick(*events);
  if (tellings.empty()) return Skipped(rings, !events->empty());
  waiting_since_ = tellings.front().event.unix_nanos();
  if (parts_.most > 1 && !std::exchange(gathered_, true)) {
    return parts_.bell.Sleep(parts_.pauses.gathers);
  }
  return Settle(parts_.send(tellings), tellings);
}

bool Delivery::StoreFailed(const absl::Status& status) {
  if (waiting_since_ == 0) waiting_since_ = absl::ToUnixNanos(parts_.clock.Wall());
  spdlog::error("notice {}: events cannot be read: {}; tried again in {}", notice_.name,
                status.ToString(), absl::FormatDuration(parts_.pauses.store));
  return parts_.bell.Sleep(parts_.pauses.store);
}

// The first events to deliver now. Moves past those that concern nobody, whose job was
// deleted, or that are given up.
std::vector<Telling> Delivery::Pick(const std::vector<v1::JobEvent>& events) {
  std::vector<Telling> tellings;
  int given_up = 0;
  for (const v1::JobEvent& event : events) {
    if (tellings.size() == parts_.most) break;
    const absl::StatusOr<JobPtr> job = parts_.store.Find(event.job_id());
    if (job.ok() && Concerns(notice_.rule, event, (*job)->job())) {
      if (!Overdue(event)) {
        tellings.push_back({.event = event, .job = *job});
        continue;
      }
      ++given_up;
    }
    if (tellings.empty()) done_ = event.sequence();
  }
  if (given_up > 0) {
    spdlog::error("notice {}: {} events given up: they are a day old and {} takes nothing",
                  notice_.name, given_up, notice_.place);
    parts_.told(Told::kGivenUp, given_up);
  }
  return tellings;
}

bool Delivery::Overdue(const v1::JobEvent& event) const {
  if (failures_ == 0) return false;
  return IsGivenUp(parts_.clock.Wall() - absl::FromUnixNanos(event.unix_nanos()),
                   parts_.clock.Monotonic() - failing_since_);
}

// There is nothing to deliver up to done_.
bool Delivery::Skipped(int64_t rings, bool more) {
  waiting_since_ = 0;
  gathered_ = false;
  if (done_ != parts_.progress.Done(notice_.name)) {
    Keep(parts_.progress.Skip(notice_.name, done_));
  }
  if (more) return true;
  return parts_.bell.Sleep(parts_.pauses.looks) && parts_.bell.WaitForRing(rings);
}

void Delivery::Keep(const absl::Status& written) const {
  if (written.ok()) return;
  spdlog::error("notice {}: its progress cannot be written, so events may be sent again: {}",
                notice_.name, written.ToString());
}

bool Delivery::Settle(const Outcome& outcome, std::span<const Telling> tellings) {
  if (outcome.kind == Outcome::kAgain) return TryLater(outcome, tellings);
  const bool delivered = outcome.kind == Outcome::kDelivered;
  done_ = Last(tellings);
  Keep(parts_.progress.Set(notice_.name, done_));
  if (!delivered) {
    spdlog::error("notice {}: {} refused by {} and not sent again: {}", notice_.name,
                  Which(tellings), notice_.place, outcome.said);
  } else if (failures_ > 0) {
    spdlog::info("notice {}: {} takes messages again, after {} attempts", notice_.name,
                 notice_.place, failures_ + 1);
  }
  parts_.told(delivered ? Told::kDelivered : Told::kRefused, static_cast<int>(tellings.size()));
  failures_ = 0;
  gathered_ = false;
  return delivered || parts_.bell.Sleep(parts_.pauses.refused);
}

bool Delivery::TryLater(const Outcome& outcome, std::span<const Telling> tellings) {
  if (parts_.bell.stopped()) return false;  // perhaps it failed because it was cancelled
  if (failures_++ == 0) failing_since_ = parts_.clock.Monotonic();
  parts_.failed();
  const double random = std::uniform_real_distribution<>(0, 1)(random_);
  const absl::Duration pause = parts_.pauses.after(failures_, random, outcome);
  spdlog::warn("notice {}: {} not delivered to {}: {}; tried again in {}", notice_.name,
               Which(tellings), notice_.place, outcome.said,
               absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(100))));
  return parts_.bell.Sleep(pause);
}

}  // namespace nsa::server
