#include "client/connect/grpc_failure.h"

#include "absl/strings/match.h"
#include "common/base/clean_text.h"

namespace nsa::client {

std::string WhyUnreachable(const std::string& message) {
  if (absl::StrContains(message, "No such file or directory")) return "no such socket";
  if (absl::StrContains(message, "Connection refused")) return "connection refused";
  if (absl::StrContains(message, "DNS resolution failed")) return "unknown host";
  if (absl::StrContains(message, "Failed parsing HTTP/2")) {
    return "something answers there, but not with gRPC: is it another program's port, or /metrics?";
  }
  if (absl::StrContains(message, "Socket closed")) return "connection closed";
  return CutText(message, 200);
}

std::string WhyTlsFailed(const std::string& message) {
  if (absl::StrContains(message, "is not in peer certificate")) {
    return "this name is not in the coordinator's certificate; use a name or address that is "
           "(subjectAltName), or make a certificate with this one";
  }
  if (absl::StrContains(message, "Ssl handshake failed") ||
      absl::StrContains(message, "SSL_ERROR")) {
    return "TLS handshake failed; is the coordinator's certificate signed by the authority in "
           "--ca-file, and does that port speak TLS?";
  }
  // The contents of the files did not make a usable channel.
  if (absl::StartsWith(message, "empty address list")) {
    return "the TLS files cannot be used; is --private-key-file the key of --certificate-file, and "
           "are all of them PEM?";
  }
  return "";
}

std::string ClosedConnectionHint(const std::string& message, bool unix_socket, bool uses_tls) {
  const bool closed =
      absl::StrContains(message, "Socket closed") || absl::StrContains(message, "Connection reset");
  if (!closed || unix_socket) return "";
  return uses_tls ? "; it closes on a client whose certificate is missing or not signed by its "
                    "tls.client_ca_file: `nsactl context set NAME --certificate-file FILE "
                    "--private-key-file FILE`"
                  : "; if it speaks TLS, see `nsactl context --help`";
}

}  // namespace nsa::client
