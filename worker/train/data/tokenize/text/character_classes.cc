#include "worker/train/data/tokenize/text/character_classes.h"

#include <utf8proc.h>

#include <cstdint>

namespace nsa::train {
namespace {

constexpr char32_t kNonJoiner = 0x200c;
constexpr char32_t kJoiner = 0x200d;

// The symbols that are alphabetic: letters in circles and squares.
bool IsLetterSymbol(char32_t c) {
  return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
         (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

}  // namespace

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsWordCharacter(Utf8Character character) {
  if (character.bytes == 0) return false;
  switch (utf8proc_category(static_cast<int32_t>(character.code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return IsLetterSymbol(character.code) || character.code == kNonJoiner ||
             character.code == kJoiner;
  }
}

}  // namespace nsa::train
