#include "server/decide/rule/cordon.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/cordon_text.h"

namespace nsa::server {
namespace {

Leave::Kind KindOf(const v1::NodeCordon& cordon, absl::Time now) {
  if (!cordon.drain()) return Leave::Kind::kNoStart;
  const bool overdue =
      cordon.deadline_unix_nanos() != 0 && now >= absl::FromUnixNanos(cordon.deadline_unix_nanos());
  return overdue ? Leave::Kind::kMoveNow : Leave::Kind::kMove;
}

}  // namespace

Leave LeaveOf(const v1::StoredJob& job, const Cordons& cordons, absl::Time now) {
  Leave leave;
  for (const v1::RankPlacement& place : job.placements()) {
    const auto cordon = cordons.find(place.node());
    if (cordon == cordons.end()) continue;
    const Leave::Kind kind = KindOf(cordon->second, now);
    if (kind <= leave.kind) continue;
    leave = {.kind = kind, .why = absl::StrCat(place.node(), " is ", CordonText(cordon->second))};
  }
  return leave;
}

bool IsMoving(const v1::StoredJob& job) {
  return job.job().state() == v1::Job::STATE_RESTARTING && !job.restart_decided() &&
         !job.gang_ending();
}

}  // namespace nsa::server
