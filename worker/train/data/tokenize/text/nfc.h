// Unicode's normalization form C (Unicode Standard Annex 15), as tokenizers apply it to a text
// before they split it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nsa::train {

// The longest run of characters that can combine with those before them, such as accents, in bytes:
// it is put in order as a whole.
inline constexpr size_t kLongestCombiningRun = size_t{16} << 20;

// `text` in normalization form C: `text` itself if it is in that form, as nearly all text is, else
// `*storage`, which has at most three times as many bytes. Bytes that are not UTF-8 stay what they
// are, and nothing combines across them. The time is linear, but for the n log n of a run of n
// combining characters; ASCII takes a fraction of a nanosecond a byte.
//
// The characters are those of Unicode 9, as in the library of Hugging Face: what later versions
// added (109 characters up to version 15) neither combines nor changes.
//
// InvalidArgument for a run above kLongestCombiningRun. Any thread may call it; the first call
// takes some milliseconds longer.
absl::StatusOr<std::string_view> ToNfc(std::string_view text, std::string* storage);

}  // namespace nsa::train
