#include "server/act/edit/request_id.h"

#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "common/base/limits.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace nsa::server {

absl::Status CheckRequestId(const std::string& request_id) {
  if (request_id.size() <= limits::kRequestIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("request_id: %d bytes (at most %d); send a UUID", request_id.size(),
                      limits::kRequestIdBytes));
}

std::string Fingerprint(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace nsa::server
