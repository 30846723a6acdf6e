// Enum values as they are spelt in YAML: in lower case and without the enum's prefix.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"

namespace nsa {

// "bf16" for PRECISION_BF16.
std::string EnumWord(const google::protobuf::EnumValueDescriptor& value);

// Every word that may be written. The 0 value means "not set" and has no word.
std::vector<std::string> EnumWords(const google::protobuf::EnumDescriptor& type);

// The number of a word. The error lists the valid words; for a word of the Python system it says
// why that word is not supported.
absl::StatusOr<int> ParseEnum(const google::protobuf::EnumDescriptor& type, std::string_view word);

}  // namespace nsa
