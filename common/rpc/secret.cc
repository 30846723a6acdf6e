#include "common/rpc/secret.h"

#include <fcntl.h>
#include <openssl/sha.h>
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
#include "common/base/write.h"
#include "common/rpc/named_file.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShortest = 16;
constexpr size_t kLargestFile = 4 << 10;

std::string View(std::string_view text) { return std::string(text); }

// Writes a file that did not exist, mode 0600, and syncs it.
absl::Status WriteNew(const fs::path& path, const std::string& content) {
  unlink(path.c_str());  // a draft of a process that was killed
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = file.valid() && WriteAll(file.get(), content) && fsync(file.get()) == 0;
  return written ? file.Close() : WriteError(errno, path.string());
}

}  // namespace

absl::StatusOr<std::string> NewSecret() {
  std::array<char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::InternalError(absl::StrCat("secret: no random numbers (", std::strerror(errno),
                                            "); does getrandom(2) work here?"));
  }
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

std::string Sha256(std::string_view secret) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash{};
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), hash.data());
  return {hash.begin(), hash.end()};
}

absl::StatusOr<std::string> ReadSecretFile(std::string_view field, const fs::path& path) {
  NSA_ASSIGN_OR_RETURN(const NamedFile file, ReadNamedFile(field, path, kLargestFile));
  NSA_RETURN_IF_ERROR(CheckIsPrivate(field, path, file.info, "a secret", "replace its content"));
  if (file.text.size() > kLargestFile) {
    return absl::InvalidArgumentError(absl::StrCat(View(field), ": ", path.string(), " has ",
                                                   file.info.st_size, " bytes (at most ",
                                                   kLargestFile, "); a token is one short line"));
  }
  std::string line(absl::StripAsciiWhitespace(file.text.substr(0, file.text.find('\n'))));
  if (line.size() >= kShortest) return line;
  return absl::InvalidArgumentError(absl::StrCat(
      View(field), ": ", path.string(), " has ", line.size(), " bytes in its first line (at least ",
      kShortest, "); `openssl rand -hex 32` makes a good one"));
}

absl::StatusOr<bool> MakeSecretFile(std::string_view field, const fs::path& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) return false;
  absl::StatusOr<std::string> secret = NewSecret();
  if (!secret.ok()) return secret.status();
  // The complete file gets its name with link(), which fails when the name is taken.
  const fs::path draft = absl::StrCat(path.string(), ".new");
  absl::Status status = WriteNew(draft, *secret + "\n");
  const bool made = status.ok() && link(draft.c_str(), path.c_str()) == 0;
  if (status.ok() && !made) status = absl::ErrnoToStatus(errno, path.string());
  unlink(draft.c_str());
  if (made || absl::IsAlreadyExists(status)) return made;
  return absl::Status(status.code(),
                      absl::StrCat(View(field), ": ", path.string(), " cannot be made (",
                                   status.message(), "); choose another folder"));
}

}  // namespace nsa
