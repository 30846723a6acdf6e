// Identifies callers and authorizes calls. On the unix socket (only its owner can open it) a caller
// without a token is an operator, and may speak for nodes that have no secret. On TCP, on loopback
// too, every caller sends a token: that of the file token_file, or one that the access store knows.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/permission.h"
#include "server/store/access_store.h"

namespace nsa::server {

class Auth {
 public:
  // Knows the tokens of `access` only; null: none. Borrowed.
  static Auth WithoutFile(const AccessStore* access) { return Auth("", access); }

  // Also knows the token with this SHA-256, as an operator's.
  static Auth WithToken(std::string sha256, const AccessStore* access) {
    return Auth(std::move(sha256), access);
  }

  // The caller, if its token is known and its role may call this method; else Unauthenticated or
  // PermissionDenied.
  absl::StatusOr<Caller> Check(const grpc::CallbackServerContext& context,
                               std::string_view method) const;

  // What gRPC knows of a caller.
  struct Sender {
    std::string peer;              // OriginOf() of gate/callers.h
    std::string header;            // as it was sent: "Bearer …" or empty
    std::string certificate_name;  // common name; empty without TLS
  };
  absl::StatusOr<Caller> Check(const Sender& sender, std::string_view method) const;

 private:
  Auth(std::string file_hash, const AccessStore* access)
      : file_hash_(std::move(file_hash)), access_(access) {}
  absl::StatusOr<Caller> Identify(const Sender& sender, bool to_agents) const;

  std::string file_hash_;  // SHA-256 of the token of token_file; empty: no caller has it
  const AccessStore* access_;
};

}  // namespace nsa::server
