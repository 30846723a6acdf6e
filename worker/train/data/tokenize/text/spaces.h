// How tokenizers of SentencePiece write spaces: as the character ▁ (U+2581), with one in front of a
// text.
#pragma once

#include <string>
#include <string_view>

namespace nsa::train {

inline constexpr std::string_view kSpaceMark = "\u2581";

// What is put in front of a text.
enum class SpacePrefix {
  kNone,
  kMark,       // a mark
  kMarkOrOwn,  // a mark, unless the text begins with a mark or a space
};

// The text with a mark for each space, behind the prefix: `text` itself if that is the same, else
// `*storage`. An empty text stays empty. At most three times as many bytes and three more.
std::string_view MarkSpaces(std::string_view text, SpacePrefix prefix, std::string* storage);

// The text with a space for each mark.
std::string UnmarkSpaces(std::string_view text);

}  // namespace nsa::train
