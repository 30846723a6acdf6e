// The keys of a YAML file, from the descriptor of its message, which is its only schema.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace nsa {

struct SchemaKey {
  std::string section;  // "" at the top
  const google::protobuf::FieldDescriptor* field = nullptr;

  // "train.lr"
  std::string Path() const;
  // True for a key that holds further keys, as train does; false for lists and maps.
  bool IsSection() const;
};

// Every key of `root` and of the sections within it, in the order of the .proto file.
std::vector<SchemaKey> SchemaKeys(const google::protobuf::Descriptor& root);

}  // namespace nsa
