#include "server/credentials.h"

#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/secret.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

absl::StatusOr<std::string> HashOfToken(const std::filesystem::path& file) {
  NSA_ASSIGN_OR_RETURN(const std::string token, ReadSecretFile("token_file", file));
  return Sha256(token);
}

bool NeedsToken(const Options& options) {
  return !options.make_token_file || !options.listen_address.empty() ||
         !options.metrics_address.empty();
}

}  // namespace

absl::StatusOr<Credentials> ReadCredentials(const Options& options, absl::Time now) {
  Credentials credentials;
  NSA_ASSIGN_OR_RETURN(credentials.tls, ReadTlsFiles(options.tls, now));
  std::error_code error;
  const bool to_be_made = options.make_token_file &&
                          std::filesystem::symlink_status(options.token_file, error).type() ==
                              std::filesystem::file_type::not_found;
  if (!NeedsToken(options) || to_be_made) return credentials;
  NSA_ASSIGN_OR_RETURN(credentials.token_sha256, HashOfToken(options.token_file));
  return credentials;
}

absl::StatusOr<Auth> AuthFor(const Options& options, const Credentials& credentials,
                             const AccessStore* access) {
  if (!NeedsToken(options)) return Auth::WithoutFile(access);
  if (!credentials.token_sha256.empty()) return Auth::WithToken(credentials.token_sha256, access);
  NSA_ASSIGN_OR_RETURN(const bool made, MakeSecretFile("token_file", options.token_file));
  if (made) {
    spdlog::info("made the token for TCP clients and for changes on the page: {}",
                 options.token_file.string());
  }
  NSA_ASSIGN_OR_RETURN(std::string hash, HashOfToken(options.token_file));
  return Auth::WithToken(std::move(hash), access);
}

absl::StatusOr<std::string> OperatorOf(const Auth& auth, std::string_view header) {
  NSA_ASSIGN_OR_RETURN(const Caller caller,
                       auth.Check({.peer = "http", .header = std::string(header)}, "StopJob"));
  if (caller.role == v1::ROLE_OPERATOR) return caller.name;
  return absl::PermissionDeniedError(
      "token: not an operator's (the page changes the jobs of everybody); use nsactl");
}

bool MayReadPage(const Auth& auth, std::string_view header) {
  constexpr std::string_view kBasic = "Basic ";
  std::string bearer(header);
  if (header.starts_with(kBasic)) {
    std::string user_and_password;
    if (!absl::Base64Unescape(bearer.substr(kBasic.size()), &user_and_password)) return false;
    const size_t colon = user_and_password.find(':');
    if (colon == std::string::npos) return false;
    bearer = absl::StrCat("Bearer ", user_and_password.substr(colon + 1));
  }
  const auto caller = auth.Check({.peer = "http", .header = bearer}, "ListJobs");
  return caller.ok() && (caller->role == v1::ROLE_VIEWER || caller->role == v1::ROLE_OPERATOR);
}

}  // namespace nsa::server
