#include "common/rpc/named_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/why_unreadable.h"

namespace nsa {

absl::StatusOr<NamedFile> ReadNamedFile(std::string_view field, const std::filesystem::path& path,
                                        size_t most) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  NamedFile named{std::string(most + 1, '\0'), {}};
  ssize_t bytes = -1;
  if (file.valid() && fstat(file.get(), &named.info) == 0) {
    bytes = read(file.get(), named.text.data(), named.text.size());
  }
  if (bytes < 0) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: %s cannot be read (%s); correct the path, or the file's owner and mode",
        std::string(field), path.string(), WhyUnreadable(path, errno)));
  }
  named.text.resize(static_cast<size_t>(bytes));
  return named;
}

absl::Status CheckIsPrivate(std::string_view field, const std::filesystem::path& path,
                            const struct stat& info, std::string_view what, std::string_view then) {
  if ((info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "%s: %s has mode %04o (0600: others must not read %s); run chmod 600 %s, and %s if others "
      "may have seen it",
      std::string(field), path.string(), info.st_mode & 07777, std::string(what), path.string(),
      std::string(then)));
}

}  // namespace nsa
