// Who may call. On the unix socket: everybody who can open it (its folder is private). On TCP: when
// a token is configured, only callers that send it.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"

namespace nsa::server {

class Auth {
 public:
  // With an empty path no token is needed. InvalidArgument for a token shorter than 16 bytes,
  // PermissionDenied for a file that others can read.
  static absl::StatusOr<Auth> FromFile(const std::filesystem::path& token_file);

  // Unauthenticated without the right token. The comparison takes constant time.
  absl::Status Check(const grpc::CallbackServerContext& context) const;

  // `peer` as gRPC names it, `header` as it was sent: "Bearer …" or empty.
  absl::Status Check(std::string_view peer, std::string_view header) const;

 private:
  explicit Auth(std::string token) : token_(std::move(token)) {}
  std::string token_;  // empty: no token needed
};

}  // namespace nsa::server
