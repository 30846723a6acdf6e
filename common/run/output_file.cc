#include "common/run/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/durable_folder.h"
#include "common/base/status.h"
#include "common/base/write.h"

namespace nsa {

namespace fs = std::filesystem;

namespace {

absl::Status CannotWrite(const std::string& name) {
  return WriteError(errno, absl::StrCat(name, ": cannot be written"));
}

// Where links lead, which need not be there.
fs::path Followed(fs::path path) {
  constexpr int kMostLinks = 40;  // as the system's
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

fs::path FolderOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// By which a file that this process has open gets a name.
std::string LinkTo(const Fd& fd) { return absl::StrCat("/proc/self/fd/", fd.get()); }

// A new file in the folder of `path`, without a name, which ends with this process; where the file
// system has none, as NFS, `path`. Invalid, with errno, if it cannot be made.
Fd NewFile(const fs::path& path) {
  constexpr mode_t kMode = 0666;
  std::error_code error;
  if (Fd fd(open(FolderOf(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kMode));
      fd.valid() && fs::exists(LinkTo(fd), error)) {
    return fd;
  }
  return Fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
}

// The same with the owner, if possible, and the mode of `like`, if that is there.
Fd Draft(const fs::path& path, const struct stat* like) {
  unlink(path.c_str());  // that of a process that was killed
  Fd fd = NewFile(path);
  if (!fd.valid() || like == nullptr) return fd;
  const bool owned = fchown(fd.get(), like->st_uid, like->st_gid) == 0;
  // Not the bits that would give it to a user who is not its owner.
  fchmod(fd.get(), like->st_mode & (owned ? 07777 : 0777));
  return fd;
}

}  // namespace

OutputFile::OutputFile(std::string name, fs::path target, fs::path draft, Fd fd)
    : name_(std::move(name)),
      target_(std::move(target)),
      draft_(std::move(draft)),
      fd_(std::move(fd)) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : name_(std::move(other.name_)),
      target_(std::move(other.target_)),
      draft_(std::exchange(other.draft_, fs::path())),
      fd_(std::move(other.fd_)),
      size_(other.size_) {}

OutputFile::~OutputFile() {
  if (!draft_.empty()) unlink(draft_.c_str());
}

absl::StatusOr<OutputFile> OutputFile::Create(const fs::path& path) {
  constexpr size_t kNameBytes = 200;  // of the draft's; the rest says whose it is
  const fs::path target = Followed(path);
  struct stat info {
  }, named{};
  const bool there = stat(path.c_str(), &info) == 0;
  // A link of /proc, where /dev/stdout leads, opens what its text need not name.
  const bool has_name = there && stat(target.c_str(), &named) == 0 && named.st_dev == info.st_dev &&
                        named.st_ino == info.st_ino;
  if (!there || (has_name && S_ISREG(info.st_mode))) {
    const fs::path draft =
        FolderOf(target) / absl::StrCat(target.filename().string().substr(0, kNameBytes),
                                        ".nsa-unfinished-", getpid());
    Fd fd = Draft(draft, there ? &info : nullptr);
    if (fd.valid()) return OutputFile(path.string(), target, draft, std::move(fd));
    if (!there || (errno != EACCES && errno != EPERM && errno != EROFS)) {
      return CannotWrite(path.string());
    }
  }
  Fd fd(open(path.c_str(), O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC));
  if (!fd.valid()) return CannotWrite(path.string());
  return OutputFile(path.string(), target, fs::path(), std::move(fd));
}

// False, with errno, if that fails.
bool OutputFile::CopyTo(const fs::path& path) const {
  const Fd to(open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (!to.valid()) return false;
  std::string piece(64 << 10, '\0');
  for (int64_t at = 0; at < size_;) {
    const ssize_t got = pread(fd_.get(), piece.data(), piece.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || !WriteAll(to.get(), std::string_view(piece.data(), static_cast<size_t>(got)))) {
      return false;
    }
    at += got;
  }
  return fsync(to.get()) == 0;
}

absl::Status OutputFile::Append(std::string_view bytes) {
  size_ += std::ssize(bytes);
  return WriteAll(fd_.get(), bytes) ? absl::OkStatus() : CannotWrite(name_);
}

absl::Status OutputFile::Publish() {
  if (draft_.empty()) return Annotate(fd_.Close(), name_);
  const auto name = [&] {
    return access(draft_.c_str(), F_OK) == 0 ||
           linkat(AT_FDCWD, LinkTo(fd_).c_str(), AT_FDCWD, draft_.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  const bool written = fsync(fd_.get()) == 0 && name();
  const bool renamed = written && rename(draft_.c_str(), target_.c_str()) == 0;
  // A file that is a mount point, as in a container, keeps its place.
  const bool in_place = written && !renamed && errno == EBUSY && CopyTo(target_);
  if (!renamed && !in_place) return CannotWrite(name_);
  NSA_RETURN_IF_ERROR(Annotate(fd_.Close(), name_));
  if (in_place) return absl::OkStatus();
  draft_.clear();
  // Fails in a folder that this user cannot read; the file is there all the same.
  SyncFolder(FolderOf(target_)).IgnoreError();
  return absl::OkStatus();
}

absl::Status FlushStandardOutput() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return absl::InternalError("standard output: cannot be written; is its disk full?");
}

absl::Status WriteOutputFile(const fs::path& path, std::string_view text) {
  NSA_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  NSA_RETURN_IF_ERROR(file.Append(text));
  return file.Publish();
}

}  // namespace nsa
