// Why gRPC could not connect. gRPC 1.51 reports every such failure as UNAVAILABLE and gives the
// cause only as English text: grpc::Status::error_details() is what a server sent and is empty
// here, ClientContext::debug_error_string() is text too, and the state of a channel has no cause.
// So this is the one place that reads the text of a message. An unknown text is shown as it is.
#pragma once

#include <string>

namespace nsa::client {

// A short form of `message`, gRPC's text about a failed connection: "connection refused".
std::string WhyUnreachable(const std::string& message);

// What to do about a TLS handshake that failed on our side; empty when the message is about
// something else. Only for a connection that uses TLS.
std::string WhyTlsFailed(const std::string& message);

// "; if it speaks TLS, …": possible causes when the coordinator closed the connection; empty
// otherwise. A server that refuses our certificate, or expects TLS, closes it without a reason.
std::string ClosedConnectionHint(const std::string& message, bool unix_socket, bool uses_tls);

}  // namespace nsa::client
