// Rules about how long the job may run, and machines on which it may not start.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

constexpr double kMostHours = 87'600;  // ten years

bool IsInside(double hours) { return hours > 0 && hours <= kMostHours; }  // false for NaN

Problems LimitsRange(const PreflightFacts& facts) {
  const v1::LimitSpec& limits = facts.spec.limits();
  if (!limits.has_hours() || IsInside(limits.hours())) return {};
  return {{"limits.hours",
           absl::StrFormat("%s (above 0, at most %s)", Number(limits.hours()), Number(kMostHours)),
           "set a value within the limits, or remove the key"}};
}

Problems TimeLimitShort(const PreflightFacts& facts) {
  const v1::LimitSpec& limits = facts.spec.limits();
  const double seconds = ExpectedSeconds(facts);
  const double hours = seconds / 3600 * 1.2;
  if (!limits.has_hours() || !IsInside(limits.hours()) || seconds <= limits.hours() * 3600) {
    return {};
  }
  const auto done = StepsDone(facts) + static_cast<int64_t>(static_cast<double>(StepsLeft(facts)) *
                                                            limits.hours() * 3600 / seconds);
  return {{"limits.hours",
           absl::StrFormat("%s (the run is expected to take %s): it will stop after about %s of %s "
                           "steps, with a checkpoint",
                           Number(limits.hours()), Duration(seconds), Grouped(done),
                           Grouped(facts.spec.train().steps())),
           absl::StrFormat(
               "set hours: %s or more, or let it stop; `nsactl resume` gives it as many "
               "hours again",
               // To be copied, so without commas.
               hours < 100 ? absl::StrFormat("%.3g", hours) : absl::StrFormat("%.0f", hours))}};
}

Problems CordonedMachine(const PreflightFacts& facts) {
  if (facts.machine() == nullptr || facts.machine()->cordon.empty()) return {};
  return {{"resources.gpus",
           absl::StrCat(facts.spec.resources().gpus(),
                        " (the ready machines that suit the job are cordoned: ",
                        facts.machine()->cordon, ")"),
           "the job waits in the queue until the machine is uncordoned (`nsactl node uncordon`) or "
           "another one joins"}};
}

constexpr PreflightRule kLimitRules[] = {
    {"LIMITS_RANGE", "`limits.hours` is outside its limits", kError, kError, false, kNothing,
     LimitsRange},
    {"TIME_LIMIT_SHORT", "the run is expected to take longer than `limits.hours`", kInfo, kInfo,
     true, kSizes, TimeLimitShort},
    {"CORDONED_MACHINE", "the job would fit, but only on a machine that is cordoned", kWarning,
     kWarning, true, kNothing, CordonedMachine},
};

}  // namespace

std::span<const PreflightRule> LimitRules() { return kLimitRules; }

}  // namespace nsa
