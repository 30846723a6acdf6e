// UTF-8 in bytes that a model writes: they come in pieces, and they may be invalid.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::train {

// What stands for a byte that is not UTF-8: U+FFFD.
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// The length of the part of `bytes` that bytes after it cannot change: all but a character at the
// end that has begun and is not complete.
size_t SettledUtf8(std::string_view bytes);

// The same bytes with kReplacementCharacter in place of each that is not UTF-8.
std::string ValidUtf8(std::string_view bytes);

// The number of characters of valid UTF-8.
int64_t Utf8Characters(std::string_view text);

}  // namespace nsa::train
