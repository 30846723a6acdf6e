// absl::Status on the wire, channels, credentials. Part of nsa::rpc, the one library of common/
// that links gRPC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "nsa/v1/config.pb.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa {

// A field of a request that is wrong.
struct FieldViolation {
  std::string field;
  std::string description;
};

// Keeps gRPC's own messages from the standard error, unless $GRPC_VERBOSITY says otherwise: they
// say in many words what ours say in few. Before the first call of gRPC, and before the first
// thread.
void SilenceGrpc();

// To the wire: the code, the message, and google.rpc.Status details with one ErrorInfo{reason,
// domain "nsa.dev"} and BadRequest violations, cut to 6 KB with a last violation "and N more"
// (above about 7 KB the receiver loses the status itself).
grpc::Status ToGrpc(const absl::Status& status, const std::string& reason = "",
                    const std::vector<FieldViolation>& violations = {});

// From the wire: code and message.
absl::Status FromGrpc(const grpc::Status& status);

// What the details said; empty where there were none.
struct ErrorDetails {
  std::string reason;
  std::vector<FieldViolation> violations;
};
ErrorDetails DetailsOf(const grpc::Status& status);

// True for unix: addresses and for hosts in 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const std::string& address);

// A channel with our keepalive (60 s / 20 s), message limits and retry policy. TLS when `tls` is
// not empty.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const v1::TlsConfig& tls);

// A context with a deadline and, when not empty, the bearer token.
std::unique_ptr<grpc::ClientContext> MakeContext(absl::Duration timeout, const std::string& token);

// $NSA_STATE_DIR, else $XDG_STATE_HOME/nsa, else ~/.local/state/nsa.
std::string DefaultStateDir();

}  // namespace nsa
