// A YAML tree into a message, by the message's descriptor.
#pragma once

#include <vector>

#include "common/job/yaml_tree.h"
#include "google/protobuf/message.h"

namespace nsa {

// Fills `message` from `root`, collecting places and, for a JobSpec, keys of the Python system.
// Every mistake is appended to `errors`, with its field path.
void FillMessage(const YamlNode& root, google::protobuf::Message* message, LoadResult* result,
                 std::vector<LoadError>* errors);

}  // namespace nsa
