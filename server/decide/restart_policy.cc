#include "server/decide/restart_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/base/reason.h"

namespace nsa::server {
namespace {

constexpr double kLongestDelaySeconds = 300;
// Each attempt runs preflight, which reads the disk.
constexpr double kShortestRefusalSeconds = 1;
constexpr double kJitter = 0.25;

RestartDecision GiveUp(std::string reason, std::string text) {
  return {.restart = false, .reason = std::move(reason), .text = std::move(text)};
}

absl::Duration Delay(double first_seconds, int failures_in_a_row, double jitter) {
  const double doubled = first_seconds * std::exp2(std::min(failures_in_a_row - 1, 30));
  const double capped = std::min(doubled, kLongestDelaySeconds);
  return absl::Seconds(capped * (1 - kJitter + 2 * kJitter * jitter));
}

RestartDecision DecideRefused(const v1::RestartSpec& policy, const RestartHistory& history,
                              const Failure& failure, double jitter) {
  if (history.refused_for >= kLongestRefusal) {
    return GiveUp(failure.reason,
                  absl::StrFormat("%s (refused %s in %s); fix the cause, then resume the job",
                                  failure.text, Count(history.refusals + 1, "time"),
                                  absl::FormatDuration(kLongestRefusal)));
  }
  const double first_seconds = std::max(policy.backoff_seconds(), kShortestRefusalSeconds);
  const int32_t failures = std::max(history.without_progress, 1) + history.refusals + 1;
  return {.restart = true,
          .delay = Delay(first_seconds, failures, jitter),
          .without_progress = history.without_progress,
          .cut_short = history.cut_short,
          .text = failure.text};
}

// Ended by what the job cannot help.
bool IsFromOutside(const Failure& failure) {
  return failure.infrastructure || ReasonFromWord(failure.reason) == Reason::kRankKilled;
}

// "3 starts in a row without a newer checkpoint".
std::string WithoutProgressText(int32_t without_progress, int32_t cut_short) {
  std::string text = absl::StrCat(Count(without_progress + cut_short, "start"),
                                  " in a row without a newer checkpoint");
  if (cut_short > 0) {
    absl::StrAppend(&text, "; ", cut_short, cut_short == 1 ? " was" : " were",
                    " ended from outside before one was due");
  }
  return text;
}

}  // namespace

RestartDecision DecideRestart(const v1::RestartSpec& policy, const RestartHistory& history,
                              const Failure& failure, absl::Time now, double jitter) {
  if (failure.final) return GiveUp(failure.reason, failure.text);
  if (failure.refused) return DecideRefused(policy, history, failure, jitter);

  int32_t without_progress = history.made_progress ? 0 : history.without_progress;
  int32_t cut_short = history.made_progress ? 0 : history.cut_short;
  if (!history.made_progress) {
    ++(history.before_checkpoint && IsFromOutside(failure) ? cut_short : without_progress);
  }
  const int32_t counted = without_progress + cut_short / kCutShortForOne;
  if (counted >= policy.max_no_progress() && policy.max_no_progress() > 0) {
    return GiveUp(Word(Reason::kNoProgress),
                  absl::StrFormat("%s (restart.max_no_progress: %d); last cause: %s",
                                  WithoutProgressText(without_progress, cut_short),
                                  policy.max_no_progress(), failure.text));
  }

  const auto recent = std::ranges::count_if(
      history.counted, [&](absl::Time time) { return now - time < kRestartWindow; });
  if (!failure.infrastructure && recent >= policy.max_restarts()) {
    return GiveUp(Word(Reason::kRestartBudgetExhausted),
                  absl::StrFormat("%s in 24 h (restart.max_restarts: %d); last cause: %s",
                                  Count(recent, "restart"), policy.max_restarts(), failure.text));
  }

  return {.restart = true,
          .delay = Delay(policy.backoff_seconds(), std::max(counted, 1), jitter),
          .counts = !failure.infrastructure,
          .without_progress = without_progress,
          .cut_short = cut_short,
          .text = failure.text};
}

}  // namespace nsa::server
