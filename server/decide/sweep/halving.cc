#include "server/decide/sweep/halving.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/reason.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

constexpr int64_t kNoStop = std::numeric_limits<int64_t>::max();

enum class Standing {
  kTrains,  // will reach its next stop, or its end
  kPaused,  // stopped where the sweep told it to
  kOut,     // takes no part any more
};

struct Member {
  const v1::StoredJob* job = nullptr;
  Standing standing = Standing::kOut;
  int64_t stop = kNoStop;  // where it stops next, or stopped
  double loss = std::numeric_limits<double>::infinity();

  int32_t index() const { return job->job().spec().sweep().index(); }
  const std::string& id() const { return job->job().id(); }
};

// A stop of another kind may come while the checkpoint of that step is written: then a user ended
// it.
bool EndedAtItsStop(const v1::Job& job) {
  const std::optional<Reason> reason = ReasonFromWord(job.reason());
  return job.state() == v1::Job::STATE_STOPPED && job.stop().mode() == v1::STOP_MODE_AT_STEP &&
         (reason == Reason::kStoppedAtStep || reason == Reason::kStoppedLate);
}

Member MemberOf(const v1::StoredJob& stored) {
  const v1::Job& job = stored.job();
  Member member{.job = &stored};
  if (job.stop().mode() == v1::STOP_MODE_AT_STEP) member.stop = job.stop().at_step();
  if (stored.sweep_dropped()) return member;
  // On its way to an end for good: as one that has ended, it takes no part.
  const bool ends = job.state() == v1::Job::STATE_STOPPING && member.stop == kNoStop;
  if (ends) return member;
  if (!IsTerminal(job.state())) {
    member.standing = Standing::kTrains;
  } else if (EndedAtItsStop(job)) {
    member.standing = Standing::kPaused;
    const v1::JobProgress& progress = job.progress();
    if (progress.val_step() >= member.stop && std::isfinite(progress.val_loss())) {
      member.loss = progress.val_loss();
    }
  }
  return member;
}

// Went past `step` already: it was promoted there, or a user resumed it.
bool IsAhead(const Member& member, int64_t step) {
  if (member.job->sweep_dropped()) return false;
  return member.standing == Standing::kOut ? member.job->job().progress().step() > step
                                           : member.stop > step;
}

std::string Place(size_t rank, size_t of, const Member& member, int64_t step) {
  if (!std::isfinite(member.loss)) {
    return absl::StrFormat("no finite validation loss at step %d", step);
  }
  return absl::StrFormat("rank %d of %d by validation loss (%.4f at step %d)", rank, of,
                         member.loss, step);
}

// Decides which `keep` of `paused` go on.
SweepDecision Halve(std::vector<Member> paused, int64_t step, int64_t next_stop, size_t keep) {
  std::ranges::sort(paused, [](const Member& a, const Member& b) {
    return a.loss != b.loss ? a.loss < b.loss : a.index() < b.index();
  });
  SweepDecision decision;
  for (size_t i = 0; i < paused.size(); ++i) {
    const Member& member = paused[i];
    const std::string place = Place(i + 1, paused.size(), member, step);
    if (i < keep && std::isfinite(member.loss)) {
      decision.promotions.push_back(
          {member.id(), next_stop,
           absl::StrCat(place, ": goes on to ",
                        next_stop == 0 ? "its last step" : absl::StrCat("step ", next_stop))});
    } else {
      decision.drops.push_back(
          {member.id(), absl::StrCat(place, ": the sweep goes on without it")});
    }
  }
  return decision;
}

size_t KeptAfter(int rung, int64_t jobs) {
  const int64_t divisor = int64_t{1} << std::min(rung + 1, 30);
  return static_cast<size_t>(std::max<int64_t>(1, (jobs + divisor - 1) / divisor));
}

}  // namespace

SweepDecision DecideSweep(const std::vector<const v1::StoredJob*>& jobs) {
  if (jobs.empty()) return {};
  const v1::SweepSpec& sweep = jobs.front()->job().spec().sweep();
  std::vector<Member> members;
  for (const v1::StoredJob* job : jobs) members.push_back(MemberOf(*job));
  const bool complete = std::ranges::any_of(
      members, [&](const Member& member) { return member.index() == sweep.jobs() - 1; });
  if (!complete) return {};
  for (int rung = 0; rung < sweep.halve_at_size(); ++rung) {
    const int64_t step = sweep.halve_at(rung);
    const bool awaited = std::ranges::any_of(members, [&](const Member& member) {
      return member.standing == Standing::kTrains && member.stop <= step;
    });
    if (awaited) return {};
    std::vector<Member> paused;
    std::ranges::copy_if(members, std::back_inserter(paused), [&](const Member& member) {
      return member.standing == Standing::kPaused && member.stop <= step;
    });
    if (paused.empty()) continue;
    const size_t keep = KeptAfter(rung, sweep.jobs());
    const auto ahead = static_cast<size_t>(
        std::ranges::count_if(members, [&](const Member& m) { return IsAhead(m, step); }));
    const bool last = rung + 1 == sweep.halve_at_size();
    return Halve(std::move(paused), step, last ? 0 : sweep.halve_at(rung + 1),
                 keep - std::min(keep, ahead));
  }
  return {};
}

bool IsPaused(const v1::StoredJob& stored) {
  const auto& steps = stored.job().spec().sweep().halve_at();
  return !steps.empty() && !stored.sweep_dropped() && EndedAtItsStop(stored.job()) &&
         stored.job().stop().at_step() <= steps[steps.size() - 1];
}

int64_t FirstSweepStop(const v1::SweepSpec& sweep) {
  return sweep.halve_at().empty() ? 0 : sweep.halve_at(0);
}

}  // namespace nsa::server
