#include "client/admin/certificates.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/rpc/x509.h"

namespace nsa::client {
namespace {

constexpr size_t kLongestName = 64;  // of a common name, by X.520
constexpr size_t kLongestHost = 253;
constexpr int kSerialBits = 159;  // a serial number has at most 20 bytes and is positive

using x509::Bio;
using x509::Cert;
using x509::Free;
using x509::Key;
using x509::ReadCert;
using x509::ReadKey;

// What OpenSSL says of the last failure.
absl::Status Failed(const std::string& what) {
  std::array<char, 256> words{};
  ERR_error_string_n(ERR_get_error(), words.data(), words.size());
  ERR_clear_error();
  return absl::InternalError(
      absl::StrCat("certificate: ", what, " (", words.data(), "); is OpenSSL installed whole?"));
}

// The text of PEM that `write` produces.
template <typename Write>
absl::StatusOr<std::string> Pem(const Write& write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return Failed("no PEM was made");
  std::string text(BIO_pending(bio.get()), '\0');
  if (BIO_read(bio.get(), text.data(), static_cast<int>(text.size())) !=
      static_cast<int>(text.size())) {
    return Failed("no PEM was made");
  }
  return text;
}

absl::StatusOr<std::string> PemOf(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

absl::Status CheckName(const std::string& name) {
  const bool good = std::ranges::all_of(name, [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == ' ';
  });
  if (good && !name.empty() && name.size() <= kLongestName) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("name: '", name, "' (1 to ", kLongestName,
                                                 " letters, digits, blanks and -_.); choose one"));
}

bool IsAddress(const std::string& host) {
  in6_addr parsed{};
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

bool IsDnsName(const std::string& host) {
  // A wildcard stands for the first label only.
  const size_t begin = absl::StartsWith(host, "*.") ? 2 : 0;
  return host.size() > begin && host.size() <= kLongestHost && host[begin] != '-' &&
         host[begin] != '.' && std::all_of(host.begin() + begin, host.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
         });
}

// "DNS:lab,IP:10.0.0.5", as OpenSSL spells it.
absl::StatusOr<std::string> AlternativeNames(const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (const std::string& host : hosts) {
    if (!IsAddress(host) && !IsDnsName(host)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "host: '", host, "' (a DNS name or an IP address, without a port); write e.g. lab"));
    }
    names.push_back(absl::StrCat(IsAddress(host) ? "IP:" : "DNS:", host));
  }
  return absl::StrJoin(names, ",");
}

bool SetSerial(X509* certificate) {
  const std::unique_ptr<BIGNUM, Free<BN_free>> serial(BN_new());
  return serial != nullptr &&
         BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetValidity(X509* certificate, const Validity& validity) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(validity.from)) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(validity.until)) != nullptr;
}

bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> extension(
      X509V3_EXT_nconf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// A certificate for `key` with nothing but its name, serial number and validity.
absl::StatusOr<Cert> Draft(EVP_PKEY* key, const std::string& name, const Validity& validity) {
  NSA_RETURN_IF_ERROR(CheckName(name));
  Cert certificate(X509_new());
  const auto* const text = reinterpret_cast<const unsigned char*>(name.c_str());
  const bool made = certificate != nullptr &&
                    X509_set_version(certificate.get(), 2) == 1 &&  // 2 means v3
                    SetSerial(certificate.get()) && SetValidity(certificate.get(), validity) &&
                    X509_set_pubkey(certificate.get(), key) == 1 &&
                    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN",
                                               MBSTRING_UTF8, text, -1, -1, 0) == 1;
  if (!made) return Failed(absl::StrCat("no certificate for ", name));
  return certificate;
}

absl::StatusOr<std::string> Finish(X509* certificate, EVP_PKEY* authority) {
  if (X509_sign(certificate, authority, EVP_sha256()) == 0) return Failed("not signed");
  return PemOf(certificate);
}

Validity Within(const Validity& wanted, const Cert& authority) {
  return {wanted.from, std::min(wanted.until, x509::ValidUntil(authority))};
}

std::string NameOf(X509* certificate) {
  std::array<char, kLongestName * 4> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name.data(),
                            static_cast<int>(name.size()));
  return name.data();
}

std::vector<std::string> HostsOf(X509* certificate) {
  std::vector<std::string> hosts;
  const std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      hosts.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                         static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      std::array<char, INET6_ADDRSTRLEN> text{};
      const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
      inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text.data(), text.size());
      hosts.emplace_back(text.data());
    }
  }
  return hosts;
}

}  // namespace

absl::StatusOr<std::string> NewKey() {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("no key was made");
  return Pem([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

absl::StatusOr<std::string> MakeAuthority(const std::string& key, const std::string& name,
                                          const Validity& validity) {
  NSA_ASSIGN_OR_RETURN(const Key own, ReadKey(key));
  NSA_ASSIGN_OR_RETURN(const Cert made, Draft(own.get(), name, validity));
  const bool complete =
      X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) == 1 &&
      AddExtension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      AddExtension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign,cRLSign") &&
      AddExtension(made.get(), made.get(), NID_subject_key_identifier, "hash");
  if (!complete) return Failed("no authority was made");
  return Finish(made.get(), own.get());
}

absl::StatusOr<std::string> Sign(const Certificate& authority, const CertificateRequest& request) {
  NSA_ASSIGN_OR_RETURN(const std::string names, AlternativeNames(request.hosts));
  NSA_ASSIGN_OR_RETURN(const Key signer, ReadKey(authority.key));
  NSA_ASSIGN_OR_RETURN(const Cert issuer, ReadCert(authority.certificate));
  NSA_ASSIGN_OR_RETURN(const Key own, ReadKey(request.key));
  NSA_ASSIGN_OR_RETURN(const Cert made,
                       Draft(own.get(), request.name, Within(request.validity, issuer)));
  const bool complete =
      X509_set_issuer_name(made.get(), X509_get_subject_name(issuer.get())) == 1 &&
      AddExtension(made.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE") &&
      AddExtension(made.get(), issuer.get(), NID_key_usage, "critical,digitalSignature") &&
      AddExtension(made.get(), issuer.get(), NID_ext_key_usage,
                   names.empty() ? "clientAuth" : "serverAuth") &&
      (names.empty() || AddExtension(made.get(), issuer.get(), NID_subject_alt_name, names)) &&
      AddExtension(made.get(), issuer.get(), NID_subject_key_identifier, "hash") &&
      AddExtension(made.get(), issuer.get(), NID_authority_key_identifier, "keyid:always");
  if (!complete) return Failed(absl::StrCat("no certificate for ", request.name));
  return Finish(made.get(), signer.get());
}

absl::StatusOr<std::string> Renew(const Certificate& authority, const std::string& certificate,
                                  const Validity& validity) {
  NSA_ASSIGN_OR_RETURN(const Key signer, ReadKey(authority.key));
  NSA_ASSIGN_OR_RETURN(const Cert issuer, ReadCert(authority.certificate));
  NSA_ASSIGN_OR_RETURN(const Cert made, ReadCert(certificate));
  const bool ours = X509_verify(made.get(), X509_get0_pubkey(issuer.get())) == 1;
  ERR_clear_error();
  if (!ours) {
    return absl::InvalidArgumentError(
        absl::StrCat("certificate: ", NameOf(made.get()), " was not signed by this authority"));
  }
  if (!SetSerial(made.get()) || !SetValidity(made.get(), Within(validity, issuer))) {
    return Failed(absl::StrCat("no certificate for ", NameOf(made.get())));
  }
  return Finish(made.get(), signer.get());
}

absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& certificate) {
  NSA_ASSIGN_OR_RETURN(const Cert read, ReadCert(certificate));
  return CertificateFacts{.name = NameOf(read.get()),
                          .hosts = HostsOf(read.get()),
                          .until = x509::ValidUntil(read),
                          .authority = X509_check_ca(read.get()) == 1};
}

bool Belongs(const Certificate& certificate) {
  const absl::StatusOr<Key> key = ReadKey(certificate.key);
  const absl::StatusOr<Cert> read = ReadCert(certificate.certificate);
  return key.ok() && read.ok() && x509::Belongs(*read, *key);
}

}  // namespace nsa::client
