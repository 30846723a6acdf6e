#include "server/decide/rule/cordon.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/cordon_text.h"

namespace nsa::server {

Leave::Kind DemandOf(const std::string& node, const Cordons& cordons, absl::Time now) {
  const auto found = cordons.find(node);
  if (found == cordons.end()) return Leave::Kind::kStay;
  const v1::NodeCordon& cordon = found->second;
  if (!cordon.drain()) return Leave::Kind::kNoStart;
  const bool overdue =
      cordon.deadline_unix_nanos() != 0 && now >= absl::FromUnixNanos(cordon.deadline_unix_nanos());
  return overdue ? Leave::Kind::kMoveNow : Leave::Kind::kMove;
}

Leave LeaveOf(const v1::StoredJob& job, const Cordons& cordons, absl::Time now) {
  Leave leave;
  for (const v1::RankPlacement& place : job.placements()) {
    const Leave::Kind kind = DemandOf(place.node(), cordons, now);
    if (kind <= leave.kind) continue;
    leave = {.kind = kind,
             .why = absl::StrCat(place.node(), " is ", CordonText(cordons.at(place.node())))};
  }
  return leave;
}

bool IsMoving(const v1::StoredJob& job) {
  return job.job().state() == v1::Job::STATE_RESTARTING && !job.restart_decided() &&
         !job.gang_ending();
}

}  // namespace nsa::server
