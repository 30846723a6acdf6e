#include "server/decide/hang_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(600);
constexpr double kCheckpointFactor = 5;

absl::Duration LimitFor(const RankProgress& rank, const HangLimits& limits) {
  if (rank.phase == "starting" || rank.phase == "loading_checkpoint" ||
      rank.phase == "waiting_for_peers" || rank.phase == "finished") {
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
  const RankProgress* culprit = nullptr;
  for (const RankProgress& rank : ranks) {
    if (!rank.heard || !rank.running || rank.since_progress < LimitFor(rank, limits)) continue;
    // The rank without progress for longest is the culprit: the others wait for it.
    if (culprit == nullptr || rank.since_progress > culprit->since_progress) culprit = &rank;
  }
  if (culprit == nullptr) return {};
  using Kind = HangDecision::Kind;
  Kind kind = Kind::kDump;
  if (state.suspected) kind = now - state.suspected_since < kDumpGrace ? Kind::kWait : Kind::kEnd;
  return {
      .kind = kind, .text = Describe(*culprit, LimitFor(*culprit, limits)), .rank = culprit->rank};
}

}  // namespace nsa::server
