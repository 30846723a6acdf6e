// Numbers and times as people read and write them. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa::client {

// "0 s", "45 s", "3 min 12 s", "2 h 05 min", "3 d 04 h"; "-" when negative or not finite.
std::string HumanDuration(double seconds);

// The seconds of a duration that somebody writes: "90s", "10m", "12h", "30d"; 0 for an empty text.
// InvalidArgument, which begins with `flag`, for other texts and for less than a second.
absl::StatusOr<int64_t> ParseSeconds(const std::string& flag, const std::string& text);

// The time before `now` by a duration as above, or the time that somebody writes: as Timestamp()
// writes it, or without an offset (local time), seconds or hour. InvalidArgument, which begins with
// `flag`, for other texts.
absl::StatusOr<absl::Time> ParseSince(const std::string& flag, const std::string& text,
                                      absl::Time now);

// "now", "41 s ago", "3 min ago", "5 h ago", "2 d ago"; "-" for 0 nanoseconds, which means never.
std::string HumanAge(absl::Time now, int64_t unix_nanos);

// The age alone: "41 s", "3 min", "5 h", "2 d"; "-" for never.
std::string ShortAge(absl::Time now, int64_t unix_nanos);

// The local time as text, with its offset from UTC: "2026-11-20T16:31:02+01:00"; "Z" if that is
// UTC; "-" for 0. Documents for programs (-o json, yaml) have UTC nanoseconds instead.
std::string Timestamp(int64_t unix_nanos);

// "512 B", "1.5 KiB", "312.0 MiB", "1.20 GiB".
std::string HumanBytes(int64_t bytes);

// "0", "950", "12.4k", "3.10M", "1.25G": thousands, for tokens and rates.
std::string HumanCount(double value);

// "1,234,567".
std::string WithCommas(int64_t value);

// Loss with four decimals; "-" when there is none (0) or it is not finite ("nan", "inf").
std::string HumanLoss(double loss);

// `width` columns of bar for a share in [0, 1], in eighths of a block with `unicode`, else '#'
// and '-'.
std::string ProgressBar(double share, int width, bool unicode);

// Columns that a UTF-8 text takes on a terminal: two for each character of Chinese, Japanese and
// Korean and for an emoji, none for a combining mark or an escape sequence, else one.
int DisplayWidth(const std::string& text);

// What fits into `width` columns; characters and escape sequences are never split.
std::string Clip(const std::string& text, int width);

// The text in at most `width` columns. One that is wider is cut and ends with a mark: "…", or "..."
// without `unicode`.
std::string Shorten(const std::string& text, int width, bool unicode);

// As many of the parts as fit into `width` columns, the most important ones first, with `separator`
// between them. Only the first is shortened, if it does not fit.
std::string JoinFitting(const std::vector<std::string>& parts, const std::string& separator,
                        int width, bool unicode);

// The text in at most `width` (at least 5) columns: of one that is wider the middle is left out, so
// that names that end differently stay different: "pretrain-...-s17x". Without colours.
std::string ClipMiddle(const std::string& text, int width);

}  // namespace nsa::client
