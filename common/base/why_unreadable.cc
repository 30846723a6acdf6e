#include "common/base/why_unreadable.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nsa {
namespace {

std::string UserName(uid_t id) {
  const passwd* const user = getpwuid(id);
  return user != nullptr ? user->pw_name : absl::StrCat("user ", id);
}

}  // namespace

std::string WhyUnreadable(const std::filesystem::path& path, int error) {
  std::string why = std::strerror(error);
  struct stat info {};
  if (error != EACCES || stat(path.c_str(), &info) != 0) return why;
  absl::StrAppendFormat(&why, "; it belongs to %s with mode %04o, and this process runs as %s",
                        UserName(info.st_uid), info.st_mode & 07777, UserName(geteuid()));
  return why;
}

}  // namespace nsa
