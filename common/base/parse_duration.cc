#include "common/base/parse_duration.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace nsa {

std::optional<absl::Duration> ParseDuration(std::string_view text) {
  absl::string_view rest(text.data(), text.size());
  // absl does not know days.
  const bool in_days =
      absl::ConsumeSuffix(&rest, "d") && rest.find_first_not_of(".0123456789") == rest.npos;
  absl::Duration duration;
  if (!absl::ParseDuration(in_days ? absl::StrCat(rest, "h") : std::string(rest), &duration)) {
    return std::nullopt;
  }
  if (in_days) duration *= 24;
  const bool good = duration >= absl::ZeroDuration() && duration < absl::InfiniteDuration();
  return good ? std::optional(duration) : std::nullopt;
}

}  // namespace nsa
