// SHA-256 of bytes that come in parts, for hashes that other programs (sha256sum) compute too.
#pragma once

#include <openssl/types.h>

#include <string>
#include <string_view>

namespace nsa {

class Sha256Sum {
 public:
  Sha256Sum();
  ~Sha256Sum();
  Sha256Sum(const Sha256Sum&) = delete;
  Sha256Sum& operator=(const Sha256Sum&) = delete;

  void Add(std::string_view bytes);

  // 64 lower-case hexadecimal digits. Once only.
  std::string Hex();

 private:
  EVP_MD_CTX* const context_;
};

}  // namespace nsa
