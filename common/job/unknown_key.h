// What to say about a key that a message does not have.
#pragma once

#include <string>
#include <string_view>

#include "google/protobuf/descriptor.h"

namespace nsa {

// "unknown key; did you mean 'save_every'?", "unknown key; it belongs to train, write
// train.seq_len", or the keys that there are. `section` is the path of `type` within `root`.
std::string UnknownKey(const google::protobuf::Descriptor& root,
                       const google::protobuf::Descriptor& type, std::string_view section,
                       std::string_view key);

}  // namespace nsa
