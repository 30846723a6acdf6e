#include "common/job/data/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"

namespace nsa {

Sha256Sum::Sha256Sum() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(context_, EVP_sha256(), nullptr);
}

Sha256Sum::~Sha256Sum() { EVP_MD_CTX_free(context_); }

void Sha256Sum::Add(std::string_view bytes) {
  EVP_DigestUpdate(context_, bytes.data(), bytes.size());
}

std::string Sha256Sum::Hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_, digest, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

}  // namespace nsa
