#include "server/decide/alert.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "common/record/alert.h"
#include "server/decide/job_event.h"

namespace nsa::server {
namespace {

constexpr absl::string_view kWordPrefix = "ALERT_";

// What the record adds to the time that the job has trained.
double SecondsOf(const v1::WorkerRecord& record) {
  const double seconds =
      record.has_step() ? record.step().times().step_seconds() : record.eval().seconds();
  return seconds > 0 ? seconds : 0;  // 0 for NaN
}

// Whether the newest value asks for a change: the alert is not raised and its condition is met, or
// the other way round.
bool AsksForChange(const record::AlertRule& rule, const v1::AlertProgress& alert) {
  return alert.has_value() && rule.Holds(alert.value()) != alert.raised();
}

void CountTime(bool asked, bool asks, bool is_step, double seconds, v1::AlertProgress* alert) {
  if (!asks) {
    alert->clear_held_steps();
    alert->clear_held_seconds();
  } else if (!asked) {
    alert->set_held_steps(is_step ? 1 : 0);
    alert->clear_held_seconds();
  } else {
    alert->set_held_steps(alert->held_steps() + (is_step ? 1 : 0));
    alert->set_held_seconds(alert->held_seconds() + seconds);
  }
}

v1::JobEvent ChangeEvent(int index, const v1::AlertProgress& alert, int64_t step) {
  v1::JobEvent event = EventOf(alert.raised() ? Reason::kAlertRaised : Reason::kAlertCleared,
                               absl::StrCat(AlertText(alert), ", step ", step),
                               alert.raised() ? v1::SEVERITY_WARNING : v1::SEVERITY_INFO);
  event.set_unix_nanos(alert.since_unix_nanos());
  event.set_problem(AlertWord(index));
  return event;
}

// True if the alert was raised or cleared.
bool FoldOne(const record::AlertRule& rule, const v1::WorkerRecord& record,
             std::span<const v1::GpuInfo> gpus, v1::AlertProgress* alert) {
  const double seconds = SecondsOf(record);
  const bool asked = AsksForChange(rule, *alert);
  if (const record::Value value = record::Measured(*rule.quantity, record, gpus)) {
    alert->set_value(*value);
  }
  const bool asks = AsksForChange(rule, *alert);
  CountTime(asked, asks, record.has_step(), seconds, alert);
  alert->set_rest_seconds(std::max(alert->rest_seconds() - seconds, 0.0));
  if (!asks || alert->held_seconds() < rule.for_seconds || alert->held_steps() < rule.for_steps) {
    return false;
  }
  if (!alert->raised() && alert->rest_seconds() > 0) return false;
  alert->set_raised(!alert->raised());
  alert->set_rest_seconds(alert->raised() ? kAlertRestSeconds : alert->rest_seconds());
  alert->clear_held_steps();
  alert->clear_held_seconds();
  return true;
}

// What was remembered stays with the text of its alert: a resume may bring other alerts.
void Align(const v1::JobSpec& spec, v1::JobProgress* progress) {
  const auto same = [](const v1::AlertSpec& wanted, const v1::AlertProgress& known) {
    return wanted.when() == known.when();
  };
  if (std::ranges::equal(spec.alerts(), progress->alerts(), same)) return;
  const std::vector<v1::AlertProgress> known(progress->alerts().begin(), progress->alerts().end());
  progress->clear_alerts();
  for (const v1::AlertSpec& wanted : spec.alerts()) {
    const auto before = std::ranges::find(known, wanted.when(), &v1::AlertProgress::when);
    v1::AlertProgress& alert = *progress->add_alerts();
    if (before != known.end()) alert = *before;
    alert.set_when(wanted.when());
  }
}

}  // namespace

std::string AlertWord(int index) { return absl::StrCat(kWordPrefix, index + 1); }

int AlertIndex(std::string_view word) {
  absl::string_view number(word.data(), word.size());
  int place = 0;
  const bool is_one = absl::ConsumePrefix(&number, kWordPrefix) && absl::SimpleAtoi(number, &place);
  return is_one && place >= 1 && place <= record::kMostAlerts ? place - 1 : -1;
}

std::string AlertText(const v1::AlertProgress& alert) {
  return absl::StrCat(alert.when(), ": now ", Number(alert.value(), 6));
}

std::vector<v1::JobEvent> FoldAlerts(const v1::WorkerRecord& record,
                                     std::span<const v1::GpuInfo> gpus, const v1::JobSpec& spec,
                                     v1::JobProgress* progress) {
  std::vector<v1::JobEvent> events;
  if (!record.has_step() && !record.has_eval()) return events;
  Align(spec, progress);
  const int64_t step = record.has_step() ? record.step().step() : record.eval().step();
  for (int i = 0; i < progress->alerts_size(); ++i) {
    v1::AlertProgress& alert = *progress->mutable_alerts(i);
    const absl::StatusOr<record::AlertRule> rule = record::ParseAlert(alert.when());
    if (!rule.ok() || !FoldOne(*rule, record, gpus, &alert)) continue;
    alert.set_since_step(step);
    alert.set_since_unix_nanos(record.unix_nanos());
    events.push_back(ChangeEvent(i, alert, step));
  }
  return events;
}

}  // namespace nsa::server
