// A message as bytes followed by their checksum, for the bodies in the store.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"

namespace nsa::server {

// Serialised message, then 8 bytes of little-endian XXH3-64 of it.
std::string Seal(const google::protobuf::MessageLite& message);

// DataLoss when the bytes are not as they were sealed.
absl::Status Unseal(std::string_view bytes, google::protobuf::MessageLite* message);

}  // namespace nsa::server
