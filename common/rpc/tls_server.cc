#include "common/rpc/tls_server.h"

#include <openssl/err.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa {
namespace {

constexpr unsigned char kHttp2[] = {2, 'h', '2'};
constexpr unsigned char kHttp1[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
// What is left of TLS 1.2: forward secrecy and authenticated encryption.
constexpr char kCiphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";

// For ALPN. A client that offers only other protocols gets `kOtherwise`.
template <const auto& kProtocol, int kOtherwise>
int Choose(SSL* /*ssl*/, const unsigned char** chosen, unsigned char* length,
           const unsigned char* offered, unsigned int offered_length, void* /*unused*/) {
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, length, kProtocol, sizeof kProtocol, offered, offered_length) !=
      OPENSSL_NPN_NEGOTIATED) {
    return kOtherwise;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

absl::Status Refused(const char* field) {
  const unsigned long error = ERR_peek_last_error();
  const char* const why = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  return absl::UnavailableError(absl::StrCat(field, ": cannot be used (",
                                             why == nullptr ? "unknown" : why,
                                             "); is its key strong enough (RSA: 2048 bits)?"));
}

absl::Status UseCertificate(const TlsFiles& files, SSL_CTX* context) {
  NSA_ASSIGN_OR_RETURN(const std::vector<x509::Cert> chain, x509::ReadCerts(files.certificate));
  NSA_ASSIGN_OR_RETURN(const x509::Key key, x509::ReadKey(files.private_key));
  bool good = SSL_CTX_use_certificate(context, chain.front().get()) == 1;
  for (size_t i = 1; good && i < chain.size(); ++i) {
    good = SSL_CTX_add1_chain_cert(context, chain[i].get()) == 1;
  }
  if (!good || SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return Refused("tls.certificate_file");
  }
  return absl::OkStatus();
}

absl::Status DemandCertificates(const TlsFiles& files, SSL_CTX* context) {
  NSA_ASSIGN_OR_RETURN(const std::vector<x509::Cert> authorities,
                       x509::ReadCerts(files.authorities));
  for (const x509::Cert& each : authorities) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), each.get()) != 1 ||
        SSL_CTX_add_client_CA(context, each.get()) != 1) {
      return Refused("tls.client_ca_file");
    }
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsServer::Context> TlsServer::NewContext(const TlsFiles& files) {
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_cipher_list(context.get(), kCiphers) != 1) {
    return Refused("tls");
  }
  // Every connection proves its certificate itself: nothing is resumed.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                         SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                         SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  NSA_RETURN_IF_ERROR(UseCertificate(files, context.get()));
  return context;
}

absl::StatusOr<TlsServer> TlsServer::Make(const TlsFiles& files) {
  NSA_ASSIGN_OR_RETURN(Context context, NewContext(files));
  SSL_CTX_set_alpn_select_cb(context.get(), Choose<kHttp2, SSL_TLSEXT_ERR_ALERT_FATAL>, nullptr);
  NSA_RETURN_IF_ERROR(DemandCertificates(files, context.get()));
  return TlsServer(std::move(context), /*http2=*/true);
}

absl::StatusOr<TlsServer> TlsServer::MakeForHttp(const TlsFiles& files) {
  NSA_ASSIGN_OR_RETURN(Context context, NewContext(files));
  // No answer: a client that offers nothing we know may still speak HTTP/1.1.
  SSL_CTX_set_alpn_select_cb(context.get(), Choose<kHttp1, SSL_TLSEXT_ERR_NOACK>, nullptr);
  return TlsServer(std::move(context), /*http2=*/false);
}

TlsSession::TlsSession(SSL_CTX* context, int fd, bool http2)
    : ssl_(SSL_new(context)), http2_(http2) {
  if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), fd) != 1) {
    ssl_.reset();
    return;
  }
  SSL_set_accept_state(ssl_.get());
}

TlsResult TlsSession::Handshake() {
  if (ssl_ == nullptr) return TlsResult::kBroken;
  ERR_clear_error();
  const int returned = SSL_do_handshake(ssl_.get());
  if (returned != 1) return ResultOf(returned);
  // A client that offers no protocol at all is not asked for one.
  const unsigned char* protocol = nullptr;
  unsigned int length = 0;
  SSL_get0_alpn_selected(ssl_.get(), &protocol, &length);
  const bool is_http2 = length == 2 && std::memcmp(protocol, "h2", 2) == 0;
  if (http2_ && !is_http2) return TlsResult::kBroken;
  ready_ = true;
  return TlsResult::kDone;
}

TlsResult TlsSession::Read(char* to, size_t size, size_t* got) {
  ERR_clear_error();
  const int returned = SSL_read_ex(ssl_.get(), to, size, got);
  return returned == 1 ? TlsResult::kDone : ResultOf(returned);
}

TlsResult TlsSession::Write(const char* from, size_t size, size_t* put) {
  ERR_clear_error();
  const int returned = SSL_write_ex(ssl_.get(), from, size, put);
  return returned == 1 ? TlsResult::kDone : ResultOf(returned);
}

void TlsSession::Close() {
  if (!ready_) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
}

std::string TlsSession::ClientName() const {
  const x509::Cert certificate(ssl_ == nullptr ? nullptr : SSL_get1_peer_certificate(ssl_.get()));
  if (certificate == nullptr) return "";
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return "";
  unsigned char* text = nullptr;
  const int length =
      ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  if (length < 0) return "";
  std::string name(reinterpret_cast<const char*>(text), static_cast<size_t>(length));
  OPENSSL_free(text);
  return name;
}

TlsResult TlsSession::ResultOf(int returned) {
  const int error = SSL_get_error(ssl_.get(), returned);
  ERR_clear_error();
  switch (error) {
    case SSL_ERROR_WANT_READ:
      return TlsResult::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return TlsResult::kWantsWrite;
    case SSL_ERROR_ZERO_RETURN:
      return TlsResult::kEnded;
    default:
      ready_ = false;  // nothing may be sent any more, not even the end
      return TlsResult::kBroken;
  }
}

}  // namespace nsa
