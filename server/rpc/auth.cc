#include "server/rpc/auth.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace nsa::server {
namespace {

constexpr size_t kShortestToken = 16;
constexpr std::string_view kScheme = "Bearer ";

bool SameBytes(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i % b.size()]);
  }
  return difference == 0;
}

}  // namespace

absl::StatusOr<Auth> Auth::FromFile(const std::filesystem::path& token_file) {
  if (token_file.empty()) return Auth("");
  struct stat info {};
  std::ifstream file(token_file);
  std::string token;
  if (stat(token_file.c_str(), &info) != 0 || !std::getline(file, token)) {
    return absl::NotFoundError(absl::StrCat("token_file: ", token_file.string(),
                                            " cannot be read; write a random token into it"));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("token_file: ", token_file.string(), " can be read by others; chmod 600 it"));
  }
  absl::StripAsciiWhitespace(&token);
  if (token.size() < kShortestToken) {
    return absl::InvalidArgumentError(absl::StrCat("token_file: ", token.size(), " bytes (≥ ",
                                                   kShortestToken,
                                                   "); `openssl rand -hex 32` makes a good one"));
  }
  return Auth(std::move(token));
}

absl::Status Auth::Check(const grpc::CallbackServerContext& context) const {
  const auto& metadata = context.client_metadata();
  const auto header = metadata.find("authorization");
  const std::string peer = context.peer();
  if (header == metadata.end()) return Check(peer, "");
  return Check(peer, std::string_view(header->second.data(), header->second.size()));
}

absl::Status Auth::Check(std::string_view peer, std::string_view header) const {
  if (token_.empty() || peer.starts_with("unix:")) return absl::OkStatus();
  if (!header.starts_with(kScheme)) {
    return absl::UnauthenticatedError(
        "authorization: no bearer token; set the context's token_file");
  }
  header.remove_prefix(kScheme.size());
  if (header.empty() || !SameBytes(header, token_)) {
    return absl::UnauthenticatedError("authorization: wrong token; check the context's token_file");
  }
  return absl::OkStatus();
}

}  // namespace nsa::server
