// Checks that a text is valid UTF-8 without NUL and other control characters.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/job/yaml_tree.h"

namespace nsa {

// Removes a UTF-8 byte-order mark from the beginning of `text`, then returns the first mistake in
// it, or nothing: too long (kMaxYamlBytes), UTF-16 or UTF-32, NUL, a control character, invalid
// UTF-8.
std::optional<LoadError> CheckText(std::string_view* text);

// "UTF-16" or "UTF-32" for a text that begins with that byte-order mark, else empty.
std::string_view WideEncoding(std::string_view text);

// Whether all of the text is valid UTF-8.
bool IsUtf8(std::string_view text);

// A scalar as the YAML parser gives it, in UTF-8: yaml-cpp reads the escapes `\N` (U+0085) and `\_`
// (U+00A0) as the single bytes 0x85 and 0xA0. In the file itself, which CheckText() has accepted,
// no such byte stands alone.
std::string WithUtf8Escapes(std::string_view value);

}  // namespace nsa
