#include "common/rpc/tls_files.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/rpc/named_file.h"
#include "common/rpc/x509.h"

namespace nsa {
namespace {

constexpr char kCertificate[] = "tls.certificate_file";
constexpr char kKey[] = "tls.private_key_file";
constexpr char kAuthorities[] = "tls.client_ca_file";
constexpr absl::Duration kSoon = absl::Hours(24 * 30);

// The whole file. With `secret`, others than its owner must have no right to it.
absl::StatusOr<std::string> ReadPem(const char* field, const std::string& path, bool secret) {
  NSA_ASSIGN_OR_RETURN(NamedFile file, ReadNamedFile(field, path, limits::kCertificateBytes));
  if (secret) {
    NSA_RETURN_IF_ERROR(
        CheckIsPrivate(field, path, file.info, "a private key", "make another key"));
  }
  if (std::ssize(file.text) > limits::kCertificateBytes) {
    return absl::UnauthenticatedError(absl::StrCat(field, ": ", path, " has ", file.info.st_size,
                                                   " bytes (at most ", limits::kCertificateBytes,
                                                   "); a PEM file is much smaller"));
  }
  return std::move(file.text);
}

std::string Date(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%MZ", time, absl::UTCTimeZone());
}

// Checks the certificates of a file and appends their end.
absl::StatusOr<x509::Cert> CheckCertificates(const char* field, const std::string& path,
                                             const std::string& pem, absl::Time now,
                                             TlsFiles* files) {
  auto certificates = x509::ReadCerts(pem);
  if (!certificates.ok()) {
    return absl::UnauthenticatedError(
        absl::StrCat(field, ": ", path, " is not a certificate in PEM (-----BEGIN CERTIFICATE-----",
                     "), or is damaged; copy it again"));
  }
  CertificateEnd end{field, path, x509::ValidUntil(certificates->front())};
  // Of a chain, the first one; of authorities, any.
  if (field == kAuthorities) {
    for (const x509::Cert& each : *certificates) {
      end.until = std::max(end.until, x509::ValidUntil(each));
    }
  }
  if (end.until <= now) {
    return absl::UnauthenticatedError(absl::StrCat(field, ": ", path, " ended on ", Date(end.until),
                                                   " (now: ", Date(now), "); ", RenewalText(end)));
  }
  files->ends.push_back(std::move(end));
  return std::move(certificates->front());
}

absl::Status CheckKey(const v1::TlsConfig& tls, const std::string& pem,
                      const x509::Cert& certificate) {
  const auto key = x509::ReadKey(pem);
  if (!key.ok()) {
    return absl::UnauthenticatedError(
        absl::StrCat(kKey, ": ", tls.private_key_file(),
                     " is not a private key in PEM without a passphrase, or is damaged; copy it "
                     "again"));
  }
  if (certificate == nullptr || x509::Belongs(certificate, *key)) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(kKey, ": ", tls.private_key_file(),
                                                 " is not the key of ", tls.certificate_file(),
                                                 "; copy both of one certificate"));
}

}  // namespace

std::string EndText(const CertificateEnd& end, absl::Time now) {
  const int64_t days = (end.until - now) / absl::Hours(24);
  return absl::StrCat("ends on ", Date(end.until), ", in ", days, days == 1 ? " day" : " days");
}

bool EndsSoon(const CertificateEnd& end, absl::Time now) { return end.until - now < kSoon; }

std::string RenewalText(const CertificateEnd& end) {
  return end.field == kAuthorities
             ? "make another authority with `nsactl admin init-tls`, and its certificates"
             : "run `nsactl admin renew-tls DIR` where its ca.key is, and copy the certificate "
               "here";
}

absl::StatusOr<TlsFiles> ReadTlsFiles(const v1::TlsConfig& tls, absl::Time now) {
  TlsFiles files;
  x509::Cert certificate;
  if (const std::string& path = tls.certificate_file(); !path.empty()) {
    NSA_ASSIGN_OR_RETURN(files.certificate, ReadPem(kCertificate, path, false));
    NSA_ASSIGN_OR_RETURN(certificate,
                         CheckCertificates(kCertificate, path, files.certificate, now, &files));
  }
  if (const std::string& path = tls.private_key_file(); !path.empty()) {
    NSA_ASSIGN_OR_RETURN(files.private_key, ReadPem(kKey, path, true));
    NSA_RETURN_IF_ERROR(CheckKey(tls, files.private_key, certificate));
  }
  if (const std::string& path = tls.client_ca_file(); !path.empty()) {
    NSA_ASSIGN_OR_RETURN(files.authorities, ReadPem(kAuthorities, path, false));
    NSA_RETURN_IF_ERROR(
        CheckCertificates(kAuthorities, path, files.authorities, now, &files).status());
  }
  return files;
}

}  // namespace nsa
