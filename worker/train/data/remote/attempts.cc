#include "worker/train/data/remote/attempts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/http/retry_after.h"

namespace nsa::train {
namespace {

constexpr int kMostWrong = 3;
constexpr int kQuiet = 2;  // failed attempts in a row that are not worth a line in the log

absl::Status Stalled(const std::string& text) {
  return WithReason(absl::DeadlineExceededError(text), Reason::kDataStalled);
}

}  // namespace

Attempts::Attempts(const RemoteOptions& options, const std::string& name,
                   const std::function<bool(absl::Duration)>& sleep)
    : options_(options), name_(name), sleep_(sleep), progress_at_(clock_.Monotonic()) {}

void Attempts::Progress() {
  progress_at_ = clock_.Monotonic();
  failed_ = 0;
}

absl::Status Attempts::GiveUp(const Outcome& outcome, absl::Duration waited) const {
  return Stalled(
      absl::StrFormat("%s: no byte for %.1f s in %d attempts (data.loader_timeout_seconds allows "
                      "%.1f s), the last one: %s; is the server overloaded or unreachable?",
                      name_, absl::ToDoubleSeconds(waited), failed_,
                      absl::ToDoubleSeconds(options_.patience), outcome.fault));
}

absl::Status Attempts::Pause(const Outcome& outcome) {
  ++failed_;
  if (outcome.kind == Outcome::kWrong && ++wrong_ == kMostWrong) {
    return absl::DataLossError(
        absl::StrCat(name_, ": ", outcome.fault, ", in ", kMostWrong,
                     " attempts; the server is not fit for reading, copy the file"));
  }
  const absl::Duration waited = clock_.Monotonic() - progress_at_;
  const absl::Duration left = options_.patience - waited;
  if (left <= absl::ZeroDuration()) return GiveUp(outcome, waited);
  const double doubled = std::ldexp(1.0, std::min(failed_ - 1, 20));
  absl::Duration pause = std::min(doubled * options_.first_pause, options_.longest_pause);
  pause *= std::uniform_real_distribution<>(0.5, 1.0)(random_);
  if (const auto asked = ParseRetryAfter(outcome.retry_after, absl::Now())) {
    if (*asked > left) {
      return Stalled(absl::StrFormat(
          "%s: %s, and the server asks to wait %.0f s (%.1f s are left); try again "
          "later, or raise data.loader_timeout_seconds",
          name_, outcome.fault, absl::ToDoubleSeconds(*asked), absl::ToDoubleSeconds(left)));
    }
    pause = std::max(pause, *asked);
  }
  if (failed_ > kQuiet) {
    spdlog::warn("data: {}: {}; attempt {} follows", name_, outcome.fault, failed_ + 1);
  }
  if (sleep_(std::min(pause, left))) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat(name_, ": cancelled"));
}

}  // namespace nsa::train
