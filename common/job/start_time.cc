#include "common/job/start_time.h"

#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/parse_duration.h"
#include "common/base/status.h"

namespace nsa {
namespace {

constexpr absl::Duration kFurthest = absl::Hours(366 * 24);

absl::Status Refused(const std::string& text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", CleanLine(CutText(text, 40)), "' ", std::string(why)));
}

}  // namespace

absl::StatusOr<StartTime> ParseStartTime(const std::string& not_before) {
  StartTime start;
  start.relative = not_before.starts_with('+');
  if (start.relative) {
    const std::optional<absl::Duration> after = ParseDuration(not_before.substr(1));
    if (!after.has_value() || *after > kFurthest) {
      return Refused(not_before,
                     "(+ and a duration of at most 366d); write e.g. +90s, +30m, +2h or +1d");
    }
    start.after = *after;
    return start;
  }
  const bool is_time = absl::ParseTime(absl::RFC3339_full, not_before, &start.at, nullptr) &&
                       start.at > absl::UnixEpoch() && start.at < absl::InfiniteFuture();
  if (is_time) return start;
  return Refused(not_before,
                 "(a time with its offset, or + and a duration); write e.g. 2026-12-24T18:00:00Z, "
                 "2026-12-24T18:00:00+01:00 or +2h");
}

absl::StatusOr<absl::Time> StartTimeFor(const std::string& not_before, absl::Time submit) {
  NSA_ASSIGN_OR_RETURN(const StartTime start, ParseStartTime(not_before));
  const absl::Time at = start.relative ? submit + start.after : start.at;
  if (at - submit <= kFurthest) return at;
  return Refused(not_before, "(at most 366 days ahead); choose an earlier time");
}

}  // namespace nsa
