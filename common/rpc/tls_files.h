// The files of a `tls:` block, read and checked before gRPC gets them: gRPC itself would only say
// that it cannot listen or connect.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/config.pb.h"

namespace nsa {

// The end of a certificate that is in use.
struct CertificateEnd {
  std::string field;  // tls.certificate_file or tls.client_ca_file
  std::string file;
  absl::Time until;  // expiry; for several authorities, the latest
};

// "ends on 2026-12-20 10:00Z, in 22 days".
std::string EndText(const CertificateEnd& end, absl::Time now);

// Whether it has less than 30 days left.
bool EndsSoon(const CertificateEnd& end, absl::Time now);

// How to have it renewed: "run `nsactl admin renew-tls …`".
std::string RenewalText(const CertificateEnd& end);

struct TlsFiles {
  // PEM; empty where no file is set.
  std::string certificate;
  std::string private_key;
  std::string authorities;
  std::vector<CertificateEnd> ends;
};

// Reads the files that are set. Every error names the setting, the file and what to do:
//
//   NotFound          a file cannot be read
//   PermissionDenied  others than its owner have a right to the private key
//   Unauthenticated   nobody can prove with them who it is: a file is too large or not PEM, the key
//                     has a passphrase or is not that of the certificate, or the certificate, or
//                     every authority, has ended at `now`
absl::StatusOr<TlsFiles> ReadTlsFiles(const v1::TlsConfig& tls, absl::Time now);

}  // namespace nsa
