// Checks that a text is valid UTF-8 without NUL and other control characters.
#pragma once

#include <optional>
#include <string_view>

#include "common/job/yaml_tree.h"

namespace nsa {

// Removes a UTF-8 byte-order mark from the beginning of `text`, then returns the first mistake in
// it, or nothing: too long (kMaxYamlBytes), UTF-16 or UTF-32, NUL, a control character, invalid
// UTF-8.
std::optional<LoadError> CheckText(std::string_view* text);

// Whether all of the text is valid UTF-8.
bool IsUtf8(std::string_view text);

}  // namespace nsa
