#include "server/decide/hang_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(600);
constexpr double kCheckpointFactor = 5;

absl::Duration LimitFor(const RankProgress& rank, const HangLimits& limits) {
  // What took long to write takes long to read.
  if (rank.phase == "loading_checkpoint") return std::max(limits.start, limits.checkpoint);
  if (rank.phase == "starting" || rank.phase == "waiting_for_peers" || rank.phase == "finished") {
    return limits.start;
  }
  if (rank.phase == "checkpoint") return limits.checkpoint;
  return rank.step - rank.first_step < kWarmupSteps ? limits.start : limits.step;
}

std::string Describe(const RankProgress& rank, absl::Duration limit) {
  const std::string& place = rank.place.empty() ? rank.phase : rank.place;
  return absl::StrFormat(
      "rank %d on %s: no progress for %.0f s in %s (limit %.0f s), process state %s", rank.rank,
      rank.node, absl::ToDoubleSeconds(rank.since_progress),
      place.empty() ? "an unknown phase" : place, absl::ToDoubleSeconds(limit),
      rank.process_state.empty() ? "?" : rank.process_state);
}

bool Judged(const RankProgress& rank) { return rank.heard && rank.running; }

bool IsOverLimit(const RankProgress& rank, const HangLimits& limits) {
  return rank.since_progress >= LimitFor(rank, limits);
}

bool StandsStill(const RankProgress& rank, const HangLimits& limits) {
  return rank.since_progress >= std::min(kSaveStacksAfter, LimitFor(rank, limits) / 2);
}

// Of the ranks without progress the one that has had none for longest: the others wait for it.
template <typename Predicate>
const RankProgress* Culprit(const std::vector<RankProgress>& ranks, const HangLimits& limits,
                            Predicate stuck) {
  const RankProgress* culprit = nullptr;
  for (const RankProgress& rank : ranks) {
    if (!Judged(rank) || !stuck(rank, limits)) continue;
    if (culprit == nullptr || rank.since_progress > culprit->since_progress) culprit = &rank;
  }
  return culprit;
}

bool SavedAlready(const RankProgress& rank, const HangState& state, absl::Duration now) {
  return state.saved_at >= now - std::max(kSaveStacksAfter, rank.since_progress);
}

HangDecision Decide(HangDecision::Kind kind, const RankProgress& rank, const HangLimits& limits) {
  return {.kind = kind,
          .text = Describe(rank, LimitFor(rank, limits)),
          .rank = rank.rank,
          .since_progress = rank.since_progress};
}

}  // namespace

RankProgress ProgressOf(const RankView& rank) {
  const v1::WorkerObservation& worker = *rank.worker;
  return {.rank = rank.rank,
          .node = rank.node_name,
          .heard = rank.node == RankView::Node::kReady,
          .running = worker.state() != v1::WorkerObservation::STATE_EXITED,
          .step = worker.step(),
          .first_step = rank.first_step,
          .phase = worker.phase(),
          .place = worker.place(),
          .process_state = worker.process_state(),
          .since_progress = absl::Seconds(worker.seconds_since_progress())};
}

HangLimits LimitsOf(const v1::RestartSpec& policy, absl::Duration last_checkpoint) {
  const absl::Duration step = absl::Seconds(policy.hang_timeout_seconds());
  return {.step = step,
          .start = std::max(step, kStartLimit),
          .checkpoint = std::max(step, kCheckpointFactor * last_checkpoint)};
}

HangDecision DecideHang(const std::vector<RankProgress>& ranks, const HangLimits& limits,
                        const HangState& state, absl::Duration now) {
  if (limits.step <= absl::ZeroDuration()) return {};
  using Kind = HangDecision::Kind;
  if (const RankProgress* const stuck = Culprit(ranks, limits, IsOverLimit); stuck != nullptr) {
    if (!state.suspected) return Decide(Kind::kDump, *stuck, limits);
    const bool dumping = now - state.suspected_since < kDumpGrace;
    return Decide(dumping ? Kind::kWait : Kind::kEnd, *stuck, limits);
  }
  const RankProgress* const still = Culprit(ranks, limits, StandsStill);
  if (still == nullptr || state.suspected || SavedAlready(*still, state, now)) return {};
  return Decide(Kind::kSave, *still, limits);
}

}  // namespace nsa::server
