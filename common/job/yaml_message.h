// Fills a message from a YAML tree, using the message's descriptor.
#pragma once

#include <vector>

#include "common/job/yaml_tree.h"
#include "google/protobuf/message.h"

namespace nsa {

// Fills `message` from `root`. Adds to `result` the place of every key and, for a JobSpec, the keys
// of the Python system. Appends every mistake to `errors`, with its field path.
void FillMessage(const YamlNode& root, google::protobuf::Message* message, LoadResult* result,
                 std::vector<LoadError>* errors);

}  // namespace nsa
