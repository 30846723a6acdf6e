// How a request that may arrive twice is recognised.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"

namespace nsa::server {

// InvalidArgument for a request id of more than 128 bytes. It may be empty.
absl::Status CheckRequestId(const std::string& request_id);

// A hash of the message as it was sent. Maps are serialised in key order, so equal messages have
// equal hashes.
std::string Fingerprint(const google::protobuf::MessageLite& message);

}  // namespace nsa::server
