// Walks the texts of a message, whatever it is.
#pragma once

#include <functional>
#include <string>

#include "google/protobuf/message.h"

namespace nsa {

// Replaces every field of type string by what `change` makes of it, at every depth, keys of maps
// too. Fields of type bytes stay as they are.
void ForEachText(google::protobuf::Message* message,
                 const std::function<std::string(const std::string&)>& change);

}  // namespace nsa
