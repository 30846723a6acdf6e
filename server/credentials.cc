#include "server/credentials.h"

#include "common/base/status.h"
#include "common/rpc/secret.h"
#include "spdlog/spdlog.h"

namespace nsa::server {

absl::StatusOr<Auth> AuthFor(const Options& options, const AccessStore* access) {
  if (options.make_token_file) {
    if (options.listen_address.empty() && options.metrics_address.empty()) {
      return Auth::WithoutFile(access);
    }
    NSA_ASSIGN_OR_RETURN(const bool made, MakeSecretFile("token_file", options.token_file));
    if (made) {
      spdlog::info("made the token for TCP clients and for changes on the page: {}",
                   options.token_file.string());
    }
  }
  return Auth::FromFile(options.token_file, access);
}

absl::StatusOr<std::string> OperatorOf(const Auth& auth, std::string_view header) {
  NSA_ASSIGN_OR_RETURN(const Caller caller,
                       auth.Check({.peer = "http", .header = std::string(header)}, "StopJob"));
  if (caller.role == v1::ROLE_OPERATOR) return caller.name;
  return absl::PermissionDeniedError(
      "token: not an operator's (the page changes the jobs of everybody); use nsactl");
}

}  // namespace nsa::server
