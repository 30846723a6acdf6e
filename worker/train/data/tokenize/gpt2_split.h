// Where GPT-2 splits a text into pieces, for the pieces of ASCII text, which are most.
#pragma once

#include <cstddef>
#include <string_view>

namespace nsa::train {

// GPT-2's pattern, in the syntax of PCRE2 with UTF and UCP. A text is its matches one after
// another.
inline constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The end of the piece that begins at `begin`, which is below text.size(), as the pattern says; or
// 0 if a byte that is not ASCII decides it.
size_t EndOfAsciiPiece(std::string_view text, size_t begin);

}  // namespace nsa::train
