// Private keys and certificates in PEM, as OpenSSL's objects with an owner.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa::x509 {

template <auto function>
struct Free {
  template <typename T>
  void operator()(T* pointer) const {
    function(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Free<X509_free>>;

// The first private key of a text. InvalidArgument if it has none, or only one with a passphrase.
absl::StatusOr<Key> ReadKey(const std::string& pem);

// All certificates of a text, at least one; the first is the file's own, others are of authorities.
// InvalidArgument if it has none, or one that is damaged.
absl::StatusOr<std::vector<Cert>> ReadCerts(const std::string& pem);

// The first certificate of a text. Errors as above.
absl::StatusOr<Cert> ReadCert(const std::string& pem);

// Whether `certificate` is for `key`.
bool Belongs(const Cert& certificate, const Key& key);

// The time until which a certificate is valid.
absl::Time ValidUntil(const Cert& certificate);

}  // namespace nsa::x509
