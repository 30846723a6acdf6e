// Why gRPC could not connect. gRPC 1.51 reports every such failure as UNAVAILABLE and says the
// cause only in English, so this is the one place that reads a message's text.
#pragma once

#include <string>

namespace nsa::client {

// A few words for `message`, gRPC's text of a connection that failed: "connection refused".
std::string WhyUnreachable(const std::string& message);

// What to do about a TLS handshake that failed on our side; empty when the message is of something
// else. Only for a connection that uses TLS.
std::string WhyTlsFailed(const std::string& message);

// "; if it speaks TLS, …": further causes of a connection that the coordinator closed. A server
// that refuses our certificate, or expects TLS, closes it without a reason. Empty otherwise.
std::string ClosedConnectionHint(const std::string& message, bool unix_socket, bool uses_tls);

}  // namespace nsa::client
