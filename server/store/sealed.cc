#include "server/store/sealed.h"

#include <xxhash.h>

#include <cstdint>
#include <cstring>

namespace nsa::server {

std::string Seal(const google::protobuf::MessageLite& message) {
  std::string bytes = message.SerializeAsString();
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return bytes;
}

absl::Status Unseal(std::string_view bytes, google::protobuf::MessageLite* message) {
  uint64_t checksum = 0;
  if (bytes.size() < sizeof(checksum)) return absl::DataLossError("body too short");
  const size_t size = bytes.size() - sizeof(checksum);
  std::memcpy(&checksum, bytes.data() + size, sizeof(checksum));
  if (checksum != XXH3_64bits(bytes.data(), size)) return absl::DataLossError("wrong checksum");
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(size))) {
    return absl::DataLossError("not a message");
  }
  return absl::OkStatus();
}

}  // namespace nsa::server
