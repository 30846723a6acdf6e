// X.509 certificates for mutual TLS: an authority, and the certificates that it signs. Keys are
// elliptic curves (P-256). Everything is PEM text; nothing here reads or writes files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa::client {

// A certificate and the key that belongs to it.
struct Certificate {
  std::string key;
  std::string certificate;
};

struct Validity {
  absl::Time from;
  absl::Time until;
};

// A new private key. Internal if OpenSSL cannot make one.
absl::StatusOr<std::string> NewKey();

// The certificate of an authority, which may sign others that cannot sign themselves.
// InvalidArgument for a name that is not 1 to 64 letters, digits, blanks and -_. , or a key that is
// not PEM.
absl::StatusOr<std::string> MakeAuthority(const std::string& key, const std::string& name,
                                          const Validity& validity);

struct CertificateRequest {
  std::string key;
  std::string name;  // the common name, as above
  // DNS names and IP addresses of a server. Empty: the certificate of a client.
  std::vector<std::string> hosts;
  Validity validity;
};

// A certificate signed by `authority`. It ends with the authority's at the latest. InvalidArgument
// for a host that is neither a DNS name nor an IP address, and as above.
absl::StatusOr<std::string> Sign(const Certificate& authority, const CertificateRequest& request);

// The same certificate, for the same key, with another validity and serial number. InvalidArgument
// if `authority` did not sign it.
absl::StatusOr<std::string> Renew(const Certificate& authority, const std::string& certificate,
                                  const Validity& validity);

struct CertificateFacts {
  std::string name;
  std::vector<std::string> hosts;
  absl::Time until;
  bool authority = false;
};

// InvalidArgument if `certificate` is not PEM.
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& certificate);

// Whether `certificate` is for `key`.
bool Belongs(const Certificate& certificate);

}  // namespace nsa::client
