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

// A new file with the owner, if possible, and the mode of `like`, if that is there. Invalid, with
// errno, if it cannot be made.
Fd Draft(const fs::path& path, const struct stat* like) {
  unlink(path.c_str());  // that of a process that was killed
  Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
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
  const fs::path target = Followed(path);
  struct stat info {};
  const bool there = stat(target.c_str(), &info) == 0;
  if (!there || S_ISREG(info.st_mode)) {
    const fs::path draft = absl::StrCat(target.string(), ".nsa-unfinished-", getpid());
    Fd fd = Draft(draft, there ? &info : nullptr);
    if (fd.valid()) return OutputFile(path.string(), target, draft, std::move(fd));
    if (!there || errno != EACCES) return CannotWrite(path.string());
  }
  Fd fd(open(target.c_str(), O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC));
  if (!fd.valid()) return CannotWrite(path.string());
  return OutputFile(path.string(), target, fs::path(), std::move(fd));
}

absl::Status OutputFile::Append(std::string_view bytes) {
  size_ += std::ssize(bytes);
  return WriteAll(fd_.get(), bytes) ? absl::OkStatus() : CannotWrite(name_);
}

absl::Status OutputFile::Publish() {
  if (!draft_.empty() && fsync(fd_.get()) != 0) return CannotWrite(name_);
  NSA_RETURN_IF_ERROR(Annotate(fd_.Close(), name_));
  if (draft_.empty()) return absl::OkStatus();
  if (rename(draft_.c_str(), target_.c_str()) != 0) return CannotWrite(name_);
  draft_.clear();
  // Fails in a folder that this user cannot read; the file is there all the same.
  SyncFolder(target_.has_parent_path() ? target_.parent_path() : ".").IgnoreError();
  return absl::OkStatus();
}

absl::Status WriteOutputFile(const fs::path& path, std::string_view text) {
  NSA_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  NSA_RETURN_IF_ERROR(file.Append(text));
  return file.Publish();
}

}  // namespace nsa
