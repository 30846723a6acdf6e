// Patterns of a tokenizer.json, by which a text is split into pieces, in the syntax of PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nsa::train {

// The longest pattern, in bytes.
inline constexpr size_t kLongestPattern = 4096;

// Hugging Face's library runs a pattern by Oniguruma, in Ruby's syntax. The same pattern for PCRE2
// with UTF and UCP; \s becomes \p{White_Space}, because PCRE2's \s also has U+180E. Allowed is what
// means the same in both:
//   characters; \r \n \t \d \D \s \S; \p{…} and \P{…} of a general category of letters, marks,
//   numbers, punctuation, symbols or separators; \ before punctuation
//   […] and […-…] of these, also with ^
//   (…) (?:…) (?=…) (?!…) |
//   (?i:…) of ASCII characters that no other character is the same as in any case, but ſ and K
//   ? * + {n} {n,} {n,m}; ? and + behind the first three
// InvalidArgument, which says what is there and at which byte, for anything else. Whether the
// brackets match is left to PCRE2.
absl::StatusOr<std::string> Pcre2Pattern(std::string_view pattern);

}  // namespace nsa::train
