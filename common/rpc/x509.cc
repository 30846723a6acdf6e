#include "common/rpc/x509.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <utility>

#include "common/base/status.h"

namespace nsa::x509 {
namespace {

Bio Reader(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm broken{};
  return ASN1_TIME_to_tm(time, &broken) == 1 ? absl::FromTimeT(timegm(&broken))
                                             : absl::InfinitePast();
}

}  // namespace

absl::StatusOr<Key> ReadKey(const std::string& pem) {
  // A key with a passphrase is refused instead of asking for it.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError("key: not a private key in PEM without a passphrase");
}

absl::StatusOr<std::vector<Cert>> ReadCerts(const std::string& pem) {
  std::vector<Cert> certificates;
  const Bio reader = Reader(pem);
  while (auto* const next = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next);
  }
  // Every reading ends with an error; "no start line" means that nothing more is there.
  const bool whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (whole && !certificates.empty()) return certificates;
  return absl::InvalidArgumentError("certificate: not a certificate in PEM");
}

absl::StatusOr<Cert> ReadCert(const std::string& pem) {
  NSA_ASSIGN_OR_RETURN(std::vector<Cert> certificates, ReadCerts(pem));
  return std::move(certificates.front());
}

bool Belongs(const Cert& certificate, const Key& key) {
  const bool same = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  return same;
}

absl::Time ValidUntil(const Cert& certificate) {
  return TimeOf(X509_get0_notAfter(certificate.get()));
}

}  // namespace nsa::x509
