#include "server/notice/rule.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/reason.h"
#include "common/job/did_you_mean.h"
#include "server/decide/alert.h"
#include "server/decide/lifecycle.h"
#include "server/decide/problem/problems.h"
#include "server/decide/problem/templates.h"

namespace nsa::server {
namespace {

// Whether the job ended with this event. One that a worker reports afterwards has the same state.
bool EndsJob(const v1::JobEvent& event) {
  if (!IsTerminal(event.state())) return false;
  const std::optional<Reason> reason = ReasonFromWord(event.reason());
  return !reason.has_value() || InfoOf(*reason).use != ReasonUse::kEvent;
}

}  // namespace

absl::StatusOr<NoticeRule> MakeNoticeRule(const std::vector<std::string>& reasons) {
  NoticeRule rule;
  for (const std::string& reason : reasons) {
    if (reason == "*") {
      rule.every_reason = true;
    } else if (IsReasonWord(reason)) {
      rule.reasons.insert(reason);
    } else {
      const std::string nearest = Nearest(reason, ReasonWords());
      return absl::InvalidArgumentError(absl::StrCat(
          "events: '", CleanLine(CutText(reason, 64)), "' is not a reason of an event; ",
          nearest.empty() ? "write one that `nsactl events` prints, for example COMPLETED, or '*'"
                          : absl::StrCat("did you mean ", nearest, "?")));
    }
  }
  return rule;
}

bool Concerns(const NoticeRule& rule, const v1::JobEvent& event, const v1::Job& job) {
  const auto& labels = job.spec().labels();
  const bool labelled = std::ranges::all_of(rule.labels, [&](const auto& wanted) {
    const auto found = labels.find(wanted.first);
    return found != labels.end() && found->second == wanted.second;
  });
  if (!labelled) return false;
  if (rule.every_reason) return true;
  if (!EndsJob(event) && IsMuted(job, WordOf(event))) return false;
  const int alert = AlertIndex(event.problem());
  if (alert >= 0 && alert < job.spec().alerts_size()) {
    const auto& notify = job.spec().alerts(alert).notify();
    if (!notify.empty()) return std::ranges::count(notify, rule.name) > 0;
    if (rule.reasons.empty()) return true;
  }
  if (!rule.reasons.empty()) return rule.reasons.contains(event.reason());
  return event.severity() >= v1::SEVERITY_WARNING || EndsJob(event);
}

}  // namespace nsa::server
