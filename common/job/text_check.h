// Is this text fit for a parser? Clean UTF-8 without NUL and control characters.
#pragma once

#include <optional>
#include <string_view>

#include "common/job/yaml_tree.h"

namespace nsa {

// Takes a UTF-8 byte-order mark off the front of `text`, then returns the first thing that is
// wrong with it, or nothing: too long, UTF-16 or UTF-32, NUL, a control character, invalid UTF-8.
std::optional<LoadError> CheckText(std::string_view* text);

}  // namespace nsa
