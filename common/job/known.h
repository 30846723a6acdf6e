// Finds the parts of a message that are not in this program's schema because a newer or an older
// program wrote it. Parsing, storing and forwarding preserve such parts. A message is refused if
// ignoring them would do something other than what was requested.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace nsa {

// InvalidArgument if an enum field has a value that is not in the schema. The error has the first
// such field's path ("spec.runtime.precision") and the valid values. `path` is the path of
// `message`.
absl::Status CheckKnownValues(const google::protobuf::Message& message, const std::string& path);

// The same, and also InvalidArgument if the message, or one inside it, has a field that is not in
// the schema. The error names a field that the schema once had; such a field may be 0, which was
// the same as to be absent.
absl::Status CheckKnown(const google::protobuf::Message& message, const std::string& path);

}  // namespace nsa
