// Conversion between absl::Status and gRPC's status, channels and credentials. Part of nsa::rpc,
// the only library of common/ that links gRPC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "nsa/v1/config.pb.h"

namespace nsa {

// A wrong field of a request.
struct FieldViolation {
  std::string field;
  std::string description;
};

// Keeps gRPC's own messages off standard error, unless $GRPC_VERBOSITY is set: our messages report
// the same errors more briefly. Call it before the first use of gRPC and before the first thread
// starts.
void SilenceGrpc();

// Converts a status for gRPC: the code, the message, and google.rpc.Status details with one
// ErrorInfo{reason, domain "nsa.dev"} and the BadRequest violations. The details are cut to 6 KB,
// with a last violation "and N more" (above about 7 KB the receiver loses the status itself).
grpc::Status ToGrpc(const absl::Status& status, const std::string& reason = "",
                    const std::vector<FieldViolation>& violations = {});

// Converts a status from gRPC: code and message.
absl::Status FromGrpc(const grpc::Status& status);

// The reason and the violations in the details of a status; empty if there are none.
struct ErrorDetails {
  std::string reason;
  std::vector<FieldViolation> violations;
};
ErrorDetails DetailsOf(const grpc::Status& status);

// True for unix: and unix-abstract: addresses and for hosts in 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const std::string& address);

// A channel with our keepalive (a ping every 60 s, timeout 20 s), message limits (receive 16 MiB,
// send 4 MiB) and retry policy. It uses TLS if `tls` is not empty; errors are those of
// ReadTlsFiles(). It shares no connection with another channel. An attempt to connect is given up
// after `attempt`; calls then end as Unavailable.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(
    const std::string& address, const v1::TlsConfig& tls,
    absl::Duration attempt = absl::Seconds(5));

// A context with a deadline (none for InfiniteDuration) and, if `token` is not empty, the bearer
// token. When the wall clock is set back, the deadline may pass unnoticed: see call_watch.h.
std::unique_ptr<grpc::ClientContext> MakeContext(absl::Duration timeout, const std::string& token);

// Trailing metadata of an answer: what the caller should know about the coordinator, whatever was
// asked. UTF-8.
inline constexpr char kWarningKey[] = "nsa-warning-bin";

// What came with an answer under kWarningKey; usually empty. Call it after the call's end.
std::string WarningOf(const grpc::ClientContext& context);

// $NSA_STATE_DIR, else $XDG_STATE_HOME/nsa, else ~/.local/state/nsa.
std::string DefaultStateDir();

// Name of the coordinator's default token file, in its state folder.
inline constexpr char kTokenFileName[] = "token";

// The token of this user's coordinator on this machine, for a TCP address on loopback: the content
// of the file kTokenFileName in DefaultStateDir(). Empty for other addresses, and when there is no
// such file or this user cannot read it.
std::string LocalToken(const std::string& address);

}  // namespace nsa
