// The server's side of TLS, by OpenSSL: for gRPC with certificates on both sides, for HTTP with the
// server's only.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/tls_files.h"
#include "common/rpc/x509.h"

namespace nsa {

// What became of an attempt to read or write.
enum class TlsResult { kDone, kWantsRead, kWantsWrite, kEnded, kBroken };

// One connection over a socket that does not block. Not thread-safe. SIGPIPE must be blocked or
// ignored.
class TlsSession {
 public:
  // `http2`: the client must speak it.
  TlsSession(SSL_CTX* context, int fd, bool http2 = true);

  TlsResult Handshake();
  // kDone: *got bytes were read, at least one.
  TlsResult Read(char* to, size_t size, size_t* got);
  // kDone: *put bytes were written, at least one. After any other result, the same bytes must come
  // first in the next call.
  TlsResult Write(const char* from, size_t size, size_t* put);
  // Tells the client that nothing follows.
  void Close();

  bool ready() const { return ready_; }  // the handshake is over
  // Common name of the client's certificate; empty when it has none.
  std::string ClientName() const;

 private:
  TlsResult ResultOf(int returned);

  std::unique_ptr<SSL, x509::Free<SSL_free>> ssl_;
  bool http2_;
  bool ready_ = false;
};

class TlsServer {
 public:
  // Clients must prove a certificate of an authority of `files`, and speak HTTP/2. Unavailable when
  // OpenSSL refuses the files, e.g. a key that is too weak.
  static absl::StatusOr<TlsServer> Make(const TlsFiles& files);

  // Clients need no certificate, and speak HTTP/1.1.
  static absl::StatusOr<TlsServer> MakeForHttp(const TlsFiles& files);

  std::unique_ptr<TlsSession> Accept(int fd) const {
    return std::make_unique<TlsSession>(context_.get(), fd, http2_);
  }

 private:
  using Context = std::unique_ptr<SSL_CTX, x509::Free<SSL_CTX_free>>;
  TlsServer(Context context, bool http2) : context_(std::move(context)), http2_(http2) {}
  static absl::StatusOr<Context> NewContext(const TlsFiles& files);

  Context context_;
  bool http2_;
};

}  // namespace nsa
