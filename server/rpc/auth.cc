#include "server/rpc/auth.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"

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

absl::StatusOr<std::string> RandomToken() {
  std::array<char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::InternalError(absl::StrCat("token_file: no random numbers (", std::strerror(errno),
                                            "); set token_file to a file with a random token"));
  }
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

// The first line of a file that only its owner can read.
absl::StatusOr<std::string> ReadToken(const std::filesystem::path& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  const bool readable = file.valid() && fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode);
  const auto text = readable ? ReadWholeFile(file.get(), path) : absl::NotFoundError("");
  if (!text.ok()) {
    return absl::NotFoundError(absl::StrCat("token_file: ", path.string(),
                                            " cannot be read; write a random token into it"));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("token_file: ", path.string(), " can be read by others; run chmod 600 ",
                     path.string(), ", and replace its token if others may have seen it"));
  }
  return std::string(absl::StripAsciiWhitespace(text->substr(0, text->find('\n'))));
}

}  // namespace

absl::StatusOr<Auth> Auth::FromFile(const std::filesystem::path& token_file) {
  NSA_ASSIGN_OR_RETURN(std::string token, ReadToken(token_file));
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
  if (peer.starts_with("unix:")) return absl::OkStatus();
  if (!header.starts_with(kScheme)) {
    return absl::UnauthenticatedError(
        "authorization: no bearer token (TCP needs one); set token_file or NSACTL_TOKEN_FILE to "
        "the "
        "coordinator's token file");
  }
  header.remove_prefix(kScheme.size());
  if (token_.empty() || header.empty() || !SameBytes(header, token_)) {
    return absl::UnauthenticatedError(
        "authorization: wrong token; set token_file or NSACTL_TOKEN_FILE to the coordinator's "
        "token "
        "file");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MakeTokenFile(const std::filesystem::path& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) return false;
  NSA_ASSIGN_OR_RETURN(const std::string token, RandomToken());
  // The complete file gets its name with link(), which fails when the name is taken.
  const std::filesystem::path draft = absl::StrCat(path.string(), ".new");
  NSA_RETURN_IF_ERROR(WriteFileAtomically(draft, token + "\n"));
  const bool made = link(draft.c_str(), path.c_str()) == 0;
  const int reason = errno;
  unlink(draft.c_str());
  if (made || reason == EEXIST) return made;
  return absl::InternalError(absl::StrCat("token_file: ", path.string(), " cannot be made (",
                                          std::strerror(reason), "); set token_file to a file"));
}

}  // namespace nsa::server
