// Enum values as a YAML file spells them: in lower case and without the enum's prefix.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"

namespace nsa {

// "bf16" for PRECISION_BF16.
std::string EnumWord(const google::protobuf::EnumValueDescriptor& value);

// Every word that may be written; the 0 value, "not said", is not one.
std::vector<std::string> EnumWords(const google::protobuf::EnumDescriptor& type);

// The number of a word. Errors say which words there are, and why for words of the Python system.
absl::StatusOr<int> ParseEnum(const google::protobuf::EnumDescriptor& type, std::string_view word);

}  // namespace nsa
