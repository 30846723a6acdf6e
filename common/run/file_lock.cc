#include "common/run/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/host_name.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

absl::Status WriteHolder(int fd, const std::filesystem::path& path, const std::string& detail) {
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity self, IdentityOf(getpid()));
  std::error_code ignored;
  struct stat info {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, path.string());
  nlohmann::json holder = {
      {"pid", self.pid},
      {"start_ticks", self.start_ticks},
      {"boot_id", self.boot_id},
      {"program", program_invocation_short_name},
      {"host", HostName()},
      {"folder", std::filesystem::absolute(path, ignored).parent_path().string()},
      {"device", info.st_dev},
      {"inode", info.st_ino}};
  if (!detail.empty()) holder["detail"] = detail;
  // Write in place: the lock belongs to this file, so another file must not replace it.
  const std::string text =
      holder.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, path.string());
  }
  return absl::OkStatus();
}

std::string Get(const nlohmann::json& holder, const char* key) {
  const auto found = holder.find(key);
  return found != holder.end() && found->is_string() ? absl::CHexEscape(found->get<std::string>())
                                                     : "?";
}

// A human-readable description of the holder. If the file has another format, its first line. A
// holder that was killed early may not have written anything.
std::string HolderOf(int fd) {
  char text[1024];
  const ssize_t length = pread(fd, text, sizeof(text), 0);
  std::string line(text, static_cast<size_t>(std::max<ssize_t>(length, 0)));
  line.resize(std::min(line.size(), line.find('\n')));
  if (line.empty()) return "a process that has not written its name";
  const auto holder = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!holder.is_object() || !holder.contains("pid") || !holder["pid"].is_number_integer()) {
    return absl::CHexEscape(line);
  }
  return absl::StrFormat("process %d (%s) on %s%s", holder["pid"].get<int64_t>(),
                         Get(holder, "program"), Get(holder, "host"),
                         holder.contains("detail") ? ", " + Get(holder, "detail") : "");
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Take(const std::filesystem::path& path,
                                        const std::string& detail) {
  Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return absl::ErrnoToStatus(errno, path.string());
  return Take(std::move(file), path, detail);
}

absl::StatusOr<FileLock> FileLock::Take(Fd file, const std::filesystem::path& path,
                                        const std::string& detail) {
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return absl::AlreadyExistsError(HolderOf(file.get()));
    const int error = errno;
    if (error != ENOLCK && error != ENOSYS && error != EOPNOTSUPP && error != EINVAL) {
      return absl::ErrnoToStatus(error, path.string());
    }
    return absl::UnimplementedError(
        absl::StrCat(path.string(), ": its file system has no locks (flock: ", std::strerror(error),
                     "); choose a folder on a local disk"));
  }
  NSA_RETURN_IF_ERROR(WriteHolder(file.get(), path, detail));
  return FileLock(std::move(file));
}

LockOrigin OriginOfLock(const std::filesystem::path& path) {
  const auto holder =
      nlohmann::json::parse(ReadWholeFile(path).value_or(""), nullptr, /*allow_exceptions=*/false);
  const auto holds = [&](const char* key, bool (nlohmann::json::*is)() const noexcept) {
    return holder.contains(key) && (holder[key].*is)();
  };
  struct stat info {};
  if (!holder.is_object() || !holds("folder", &nlohmann::json::is_string) ||
      !holds("device", &nlohmann::json::is_number_unsigned) ||
      !holds("inode", &nlohmann::json::is_number_unsigned) || stat(path.c_str(), &info) != 0) {
    return {};
  }
  return {.folder = holder["folder"].get<std::string>(),
          .copied = holder["device"] != info.st_dev || holder["inode"] != info.st_ino};
}

}  // namespace nsa
