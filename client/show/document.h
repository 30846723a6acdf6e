// Messages as documents for programs: the proto3 JSON mapping with the field names of the .proto
// files, every field present, int64 as strings; and the same document as YAML.
#pragma once

#include <string>

#include "google/protobuf/message.h"
#include "nlohmann/json_fwd.hpp"

namespace nsa::client {

nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// Indented, with a newline at the end; on one line with `compact`.
std::string JsonText(const nlohmann::ordered_json& document, bool compact = false);

// Block style; a YAML 1.1 or 1.2 reader gets the same document back as from JsonText().
std::string YamlText(const nlohmann::ordered_json& document);

}  // namespace nsa::client
