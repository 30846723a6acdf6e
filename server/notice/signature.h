// The signature of a webhook's request. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::server {

// The value of the header X-NSA-Signature: "t=SECONDS,v1=HEX", where HEX is the HMAC-SHA256 of
// "SECONDS." and the body, 64 lower-case hexadecimal digits. The time lets the receiver refuse a
// request that somebody recorded and sends again later.
std::string NoticeSignature(std::string_view key, int64_t unix_seconds, std::string_view body);

}  // namespace nsa::server
