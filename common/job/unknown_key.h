// The error text for an unknown key.
#pragma once

#include <string>
#include <string_view>

#include "google/protobuf/descriptor.h"

namespace nsa {

// "unknown key; did you mean 'save_every'?", "unknown key; it belongs to train; write it as
// train.seq_len", "unknown key; an earlier version had it; remove it, see CHANGELOG.md", or
// "unknown key; the keys here are …". `section` is the path of `type` in `root`.
std::string UnknownKey(const google::protobuf::Descriptor& root,
                       const google::protobuf::Descriptor& type, std::string_view section,
                       std::string_view key);

}  // namespace nsa
