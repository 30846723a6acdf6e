// Rules about what a job waits for (`after`, `not_before`) and about its alerts.
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/job/did_you_mean.h"
#include "common/job/start_time.h"
#include "common/preflight/rules.h"
#include "common/record/alert.h"

namespace nsa {
namespace {

constexpr int kMostAfter = 16;

// An error `problem; fix` as a finding about `field`.
Problem Found(const std::string& field, const absl::Status& error) {
  const std::string text(error.message());
  const size_t end = text.rfind("; ");
  if (end == text.npos) return {field, text, "correct it"};
  return {field, text.substr(0, end), text.substr(end + 2)};
}

std::string Shown(const std::string& text) {
  return CleanLine(CutText(text, limits::kJobNameBytes));
}

Problems AfterInvalid(const PreflightFacts& facts) {
  const auto& after = facts.spec.after();
  if (after.size() > kMostAfter) {
    return {{"after", absl::StrFormat("%d jobs (at most %d)", after.size(), kMostAfter),
             "name fewer; a job that waits for others stands for all of them"}};
  }
  Problems problems;
  std::set<std::string> seen;
  for (int i = 0; i < after.size(); ++i) {
    const std::string field = absl::StrFormat("after[%d]", i);
    if (after[i].empty() || after[i].size() > limits::kJobNameBytes) {
      problems.push_back({field,
                          absl::StrCat("'", Shown(after[i]), "' (must be the name or id of a job)"),
                          "name a job"});
    } else if (!seen.insert(after[i]).second) {
      problems.push_back(
          {field, absl::StrCat(Shown(after[i]), " (must be named once)"), "remove it"});
    } else if (facts.context.awaited) {
      const absl::Status may_wait = facts.context.awaited(after[i]);
      if (!may_wait.ok()) problems.push_back(Found(field, may_wait));
    }
  }
  return problems;
}

Problems NotBeforeInvalid(const PreflightFacts& facts) {
  if (facts.spec.not_before().empty()) return {};
  const auto start = ParseStartTime(facts.spec.not_before());
  return start.ok() ? Problems() : Problems{Found("not_before", start.status())};
}

void CheckNotices(const PreflightFacts& facts, const v1::AlertSpec& alert, const std::string& field,
                  Problems* problems) {
  if (alert.notify_size() > record::kMostAlertNotices) {
    problems->push_back(
        {field,
         absl::StrFormat("%d notices (at most %d)", alert.notify_size(), record::kMostAlertNotices),
         "name fewer, or leave it out for every notice that sends warnings"});
    return;
  }
  const std::vector<std::string>* const known = facts.context.notices;
  for (const std::string& name : alert.notify()) {
    if (known == nullptr || std::ranges::count(*known, name) > 0) continue;
    const std::string nearest = Nearest(name, *known);
    std::string fix = "name one of them, or leave notify out for every notice that sends warnings";
    if (known->empty()) fix = "add one to coordinator.yaml (docs/deploy.md), or leave notify out";
    if (!nearest.empty()) fix = absl::StrCat("did you mean ", nearest, "?");
    problems->push_back(
        {field,
         absl::StrCat("'", Shown(name), "' (a name of `notices` in coordinator.yaml, which has ",
                      known->size(), ")"),
         fix});
  }
}

Problems AlertsInvalid(const PreflightFacts& facts) {
  const auto& alerts = facts.spec.alerts();
  if (alerts.size() > record::kMostAlerts) {
    return {{"alerts", absl::StrFormat("%d (at most %d)", alerts.size(), record::kMostAlerts),
             "keep those that somebody would act on"}};
  }
  Problems problems;
  std::set<std::string> seen;
  for (int i = 0; i < alerts.size(); ++i) {
    const std::string when = absl::StrFormat("alerts[%d].when", i);
    if (const auto rule = record::ParseAlert(alerts[i].when()); !rule.ok()) {
      problems.push_back(Found(when, rule.status()));
    } else if (!seen.insert(alerts[i].when()).second) {
      problems.push_back({when,
                          absl::StrCat("'", Shown(alerts[i].when()), "' (must be given once)"),
                          "name all its notices in one `notify`"});
    }
    CheckNotices(facts, alerts[i], absl::StrFormat("alerts[%d].notify", i), &problems);
  }
  return problems;
}

constexpr PreflightRule kQueueRules[] = {
    {"AFTER_INVALID", "`after` names too many jobs, one twice, or one that cannot be waited for",
     kError, kError, false, kNothing, AfterInvalid},
    {"NOT_BEFORE_INVALID", "`not_before` is neither a time nor a duration within its limits",
     kError, kError, false, kNothing, NotBeforeInvalid},
    {"ALERTS_INVALID", "an alert has no valid condition, or names a notice that is not there",
     kError, kError, false, kNothing, AlertsInvalid},
};

}  // namespace

std::span<const PreflightRule> QueueRules() { return kQueueRules; }

}  // namespace nsa
