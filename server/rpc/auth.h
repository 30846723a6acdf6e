// Who may call. On the unix socket: everybody who can open it (only its owner can). On TCP, on
// loopback too: only callers that send the token.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"

namespace nsa::server {

class Auth {
 public:
  // Refuses every TCP caller.
  static Auth SocketOnly() { return Auth(""); }

  // The token is the first line of the file. NotFound when it cannot be read, InvalidArgument for a
  // token shorter than 16 bytes, PermissionDenied for a file that others can read.
  static absl::StatusOr<Auth> FromFile(const std::filesystem::path& token_file);

  // Unauthenticated for a TCP caller without the right token. The comparison takes constant time.
  absl::Status Check(const grpc::CallbackServerContext& context) const;

  // `peer` as gRPC names it, `header` as it was sent: "Bearer …" or empty.
  absl::Status Check(std::string_view peer, std::string_view header) const;

 private:
  explicit Auth(std::string token) : token_(std::move(token)) {}
  std::string token_;  // empty: no caller has it
};

// Writes a random token (32 bytes, as 64 hexadecimal digits) to `path`, mode 0600, and returns
// true. Returns false and changes nothing if `path` exists. A reader sees no file or all of it.
absl::StatusOr<bool> MakeTokenFile(const std::filesystem::path& path);

}  // namespace nsa::server
