// Cleans every text of a message from the coordinator, before people see it.
#pragma once

#include "google/protobuf/message.h"

namespace nsa::client {

// Applies CleanText() (common/base/clean_text.h) to every field of type string, at every depth;
// keys of maps too. Fields of type bytes stay as they are.
void CleanTexts(google::protobuf::Message* message);

}  // namespace nsa::client
