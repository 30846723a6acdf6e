#include "server/notice/signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace nsa::server {

std::string NoticeSignature(std::string_view key, int64_t unix_seconds, std::string_view body) {
  const std::string text =
      absl::StrCat(unix_seconds, ".", absl::string_view(body.data(), body.size()));
  std::array<unsigned char, EVP_MAX_MD_SIZE> code{};
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), code.data(), &size);
  return absl::StrCat("t=", unix_seconds, ",v1=",
                      absl::BytesToHexString({reinterpret_cast<const char*>(code.data()), size}));
}

}  // namespace nsa::server
