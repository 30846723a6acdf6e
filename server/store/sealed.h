// Serialised messages with a checksum: the bodies in the store.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"

namespace nsa::server {

// The serialised message, followed by its XXH3-64 (8 bytes, little-endian).
std::string Seal(const google::protobuf::MessageLite& message);

// DataLoss when the bytes have changed since Seal().
absl::Status Unseal(std::string_view bytes, google::protobuf::MessageLite* message);

}  // namespace nsa::server
