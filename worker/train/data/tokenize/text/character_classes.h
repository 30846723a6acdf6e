// What Hugging Face's library calls white space and parts of words.
#pragma once

#include "common/base/characters/utf8.h"

namespace nsa::train {

// Unicode's White_Space.
bool IsWhiteSpace(char32_t code);

// Whether the character is one of \w of Unicode Technical Standard 18: alphabetic, a mark, a
// decimal digit, a connector, or a joiner. False for none.
bool IsWordCharacter(Utf8Character character);

}  // namespace nsa::train
