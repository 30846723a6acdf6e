#include "client/show/human.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/characters/utf8.h"
#include "common/base/parse_duration.h"

namespace nsa::client {
namespace {

constexpr int64_t kMinute = 60;
constexpr int64_t kHour = 60 * kMinute;
constexpr int64_t kDay = 24 * kHour;
constexpr double kLongest = 1e4 * kDay;

// A character or an escape sequence, and the columns that it takes on a terminal.
struct Glyph {
  size_t bytes = 1;
  int columns = 1;
};

// The first one of a text that is not empty. A byte that is not UTF-8 takes a column.
Glyph FirstGlyph(std::string_view text) {
  if (text[0] == '\x1B') return {std::min(text.find('m'), text.size() - 1) + 1, 0};
  const Utf8Character character = FirstUtf8(text);
  if (character.code < 0x80) return {};
  return {character.bytes, utf8proc_charwidth(static_cast<utf8proc_int32_t>(character.code))};
}

}  // namespace

std::string HumanDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds > kLongest) return ">10000 d";
  const int64_t s = std::llround(seconds);
  if (s < kMinute) return absl::StrFormat("%d s", s);
  if (s < kHour) return absl::StrFormat("%d min %02d s", s / kMinute, s % kMinute);
  if (s < kDay) return absl::StrFormat("%d h %02d min", s / kHour, s % kHour / kMinute);
  return absl::StrFormat("%d d %02d h", s / kDay, s % kDay / kHour);
}

std::string ShortAge(absl::Time now, int64_t unix_nanos) {
  if (unix_nanos == 0) return "-";
  const int64_t s =
      std::max<int64_t>(0, absl::ToInt64Seconds(now - absl::FromUnixNanos(unix_nanos)));
  if (s < kMinute) return absl::StrFormat("%d s", s);
  if (s < kHour) return absl::StrFormat("%d min", s / kMinute);
  if (s < kDay) return absl::StrFormat("%d h", s / kHour);
  return absl::StrFormat("%d d", s / kDay);
}

absl::StatusOr<int64_t> ParseSeconds(const std::string& flag, const std::string& text) {
  if (text.empty()) return 0;
  const std::optional<absl::Duration> duration = ParseDuration(text);
  if (duration >= absl::Seconds(1)) return absl::ToInt64Seconds(*duration);
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": '", text, "' (a duration of at least 1s); write e.g. 90s, 12h or 30d"));
}

absl::StatusOr<absl::Time> ParseSince(const std::string& flag, const std::string& text,
                                      absl::Time now) {
  static constexpr const char* kForms[] = {absl::RFC3339_full, "%Y-%m-%dT%H:%M:%E*S",
                                           "%Y-%m-%dT%H:%M",   "%Y-%m-%d %H:%M:%E*S",
                                           "%Y-%m-%d %H:%M",   "%Y-%m-%d"};
  absl::Time time;
  for (const char* form : kForms) {
    if (absl::ParseTime(form, text, absl::LocalTimeZone(), &time, nullptr)) return time;
  }
  if (!text.empty()) {
    const absl::StatusOr<int64_t> seconds = ParseSeconds(flag, text);
    if (seconds.ok()) return now - absl::Seconds(*seconds);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": '", text,
                   "' (a duration of at least 1s, or a time); write e.g. 90s, 12h, 30d or "
                   "2026-11-20T13:00:00"));
}

std::string HumanAge(absl::Time now, int64_t unix_nanos) {
  const std::string age = ShortAge(now, unix_nanos);
  if (age == "-") return age;
  return age == "0 s" ? "now" : age + " ago";
}

std::string Timestamp(int64_t unix_nanos) {
  if (unix_nanos == 0) return "-";
  const absl::Time time = absl::FromUnixNanos(unix_nanos);
  const absl::TimeZone zone = absl::LocalTimeZone();
  const bool utc = zone.At(time).offset == 0;
  return absl::FormatTime(utc ? "%Y-%m-%dT%H:%M:%SZ" : "%Y-%m-%dT%H:%M:%S%Ez", time, zone);
}

std::string HumanBytes(int64_t bytes) {
  constexpr double kKi = 1024;
  const double value = static_cast<double>(bytes);
  const double size = std::fabs(value);
  if (size < kKi) return absl::StrFormat("%d B", bytes);
  if (size < kKi * kKi) return absl::StrFormat("%.1f KiB", value / kKi);
  if (size < kKi * kKi * kKi) return absl::StrFormat("%.1f MiB", value / (kKi * kKi));
  return absl::StrFormat("%.2f GiB", value / (kKi * kKi * kKi));
}

std::string HumanCount(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::fabs(value);
  if (size < 999.5) return absl::StrFormat("%.0f", value);
  if (size < 999.95e3) return absl::StrFormat("%.1fk", value / 1e3);
  if (size < 999.995e6) return absl::StrFormat("%.2fM", value / 1e6);
  return absl::StrFormat("%.2fG", value / 1e9);
}

std::string WithCommas(int64_t value) {
  const std::string digits = absl::StrCat(value);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool boundary = i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-';
    if (boundary) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string HumanLoss(double loss) {
  if (std::isnan(loss)) return "nan";
  if (std::isinf(loss)) return "inf";
  return loss == 0 ? "-" : absl::StrFormat("%.4f", loss);
}

std::string ProgressBar(double share, int width, bool unicode) {
  if (!std::isfinite(share)) share = 0;
  share = std::clamp(share, 0.0, 1.0);
  std::string bar;
  if (!unicode) {
    // Rounded down, so that the bar is full only at the end.
    const int full = static_cast<int>(share * width);
    return std::string(full, '#') + std::string(width - full, '-');
  }
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * width * 8);
  int columns = 0;
  for (; columns < eighths / 8; ++columns) bar += "█";
  if (eighths % 8 != 0) {
    bar += kEighths[eighths % 8];
    ++columns;
  }
  for (; columns < width; ++columns) bar += "░";
  return bar;
}

int DisplayWidth(const std::string& text) {
  int width = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const Glyph glyph = FirstGlyph(rest);
    width += glyph.columns;
    rest.remove_prefix(glyph.bytes);
  }
  return width;
}

std::string Shorten(const std::string& text, int width, bool unicode) {
  if (DisplayWidth(text) <= width) return text;
  const std::string mark = unicode ? "…" : "...";
  const int left = width - DisplayWidth(mark);
  return left < 1 ? Clip(text, width) : Clip(text, left) + mark;
}

std::string JoinFitting(const std::vector<std::string>& parts, const std::string& separator,
                        int width, bool unicode) {
  std::string line;
  for (const std::string& part : parts) {
    const std::string longer = line.empty() ? part : absl::StrCat(line, separator, part);
    if (!line.empty() && DisplayWidth(longer) > width) break;
    line = longer;
  }
  return Shorten(line, width, unicode);
}

std::string ClipMiddle(const std::string& text, int width) {
  if (DisplayWidth(text) <= width) return text;
  const int left = (width - 3) / 2;
  std::string_view tail = text;
  while (DisplayWidth(std::string(tail)) > width - 3 - left)
    tail.remove_prefix(FirstGlyph(tail).bytes);
  return absl::StrCat(Clip(text, left), "...", std::string(tail));
}

std::string Clip(const std::string& text, int width) {
  std::string_view rest = text;
  for (int used = 0; !rest.empty();) {
    const Glyph glyph = FirstGlyph(rest);
    used += glyph.columns;
    if (used > width) break;
    rest.remove_prefix(glyph.bytes);
  }
  std::string result = text.substr(0, text.size() - rest.size());
  // A colour that was switched on must be switched off again.
  if (!rest.empty() && result.find('\x1B') != std::string::npos) result += "\x1B[0m";
  return result;
}

}  // namespace nsa::client
