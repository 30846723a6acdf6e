// Who may call: everybody on the unix socket (its folder is private) and, when there is a token,
// only bearers of it on TCP.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"

namespace nsa::server {

class Auth {
 public:
  // Without a file nobody needs a token. InvalidArgument for a token shorter than 16 bytes,
  // PermissionDenied for a file that others can read.
  static absl::StatusOr<Auth> FromFile(const std::filesystem::path& token_file);

  // Unauthenticated without the token, with a time that does not depend on how much of it is right.
  absl::Status Check(const grpc::CallbackServerContext& context) const;

  // `peer` as gRPC names it, `header` as it was sent: "Bearer …" or empty.
  absl::Status Check(std::string_view peer, std::string_view header) const;

 private:
  explicit Auth(std::string token) : token_(std::move(token)) {}
  std::string token_;  // empty: none needed
};

}  // namespace nsa::server
