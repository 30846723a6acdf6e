// What a message holds that this program's schema does not know, because a newer program made it.
// Such parts survive parsing, storing and passing on; where leaving them out would do something
// else than was asked for, the message is refused instead.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace nsa {

// InvalidArgument for the first enum field whose value has no name here, with the field's path
// ("spec.runtime.precision") and the values that may be sent. `path` is the message's own.
absl::Status CheckKnownValues(const google::protobuf::Message& message, const std::string& path);

// The same, and for the first message within that holds fields without a name here.
absl::Status CheckKnown(const google::protobuf::Message& message, const std::string& path);

}  // namespace nsa
