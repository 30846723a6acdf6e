// The limits of texts in messages from outside, checked where they are taken.
#pragma once

#include <cstddef>

#include "google/protobuf/message.h"

namespace nsa::server {

// Cuts each text in the message, and in those inside it, to `most` bytes and "…" (CutText()), and
// drops the fields that are not known: they would be kept and sent on.
void CutTexts(google::protobuf::Message* message, size_t most);

}  // namespace nsa::server
