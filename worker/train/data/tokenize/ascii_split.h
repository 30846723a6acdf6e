// Where well-known tokenizers split a text into pieces, for the pieces of ASCII text, which are
// most. Each function is faster than PCRE2 on the pattern that it stands for.
#pragma once

#include <cstddef>
#include <string_view>

namespace nsa::train {

// The patterns, as their tokenizer.json have them. Most match every text: it is their matches one
// after another.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Also Llama 3's.
inline constexpr std::string_view kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Mistral's Tekken: o200k's without contractions, and each digit by itself.
inline constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Parts of a Sequence. Numbers are those of DeepSeek V3, of Digits with individual_digits and of
// Digits without.
inline constexpr std::string_view kThreeDigitsPattern = R"(\p{N}{1,3})";
inline constexpr std::string_view kDigitPattern = R"(\p{N})";
inline constexpr std::string_view kNumberPattern = R"(\p{N}+)";
// DeepSeek V3's second and third pattern. The line ends are characters, not escapes.
inline constexpr std::string_view kHanAndKanaPattern = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
inline constexpr std::string_view kDeepSeekPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
    "\r\n"
    R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
    "\r\n"
    R"(]*|\s*[)"
    "\r\n"
    R"(]+|\s+(?!\S)|\s+)";

// The end of the piece that begins at `begin`, which is below text.size(): of the match there, or
// else of what is before the next match. 0 if a byte that is not ASCII decides it.
using AsciiSplit = size_t (*)(std::string_view text, size_t begin);

// The function of a pattern; null for one that is none of the above.
AsciiSplit AsciiSplitOf(std::string_view pattern);

// Whether the pattern is one of the above and its matches leave nothing of any text out.
bool MatchesEveryText(std::string_view pattern);

}  // namespace nsa::train
