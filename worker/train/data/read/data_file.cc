#include "worker/train/data/read/data_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data/url.h"
#include "worker/train/data/remote/remote.h"

namespace nsa::train {

absl::StatusOr<Fd> OpenDataFile(const std::filesystem::path& path) {
  absl::StatusOr<Fd> fd = OpenJobFile(path);
  if (absl::IsNotFound(fd.status()) || absl::IsPermissionDenied(fd.status())) {
    return WithMessage(fd.status(),
                       absl::StrCat(fd.status().message(), "; ", std::string(kGiveReadableFile)));
  }
  if (!absl::IsInvalidArgument(fd.status())) return fd;
  std::error_code error;
  if (is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": is a folder; list its files in data.path"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path.string(), ": is not a regular file; write its content to a file and list that"));
}

DataFile::DataFile(Fd fd, std::string name, int64_t size, ReadProgress* progress)
    : ByteFile(std::move(name), size), fd_(std::move(fd)), progress_(progress) {}
DataFile::DataFile(std::unique_ptr<RemoteFile> remote, std::string name, ReadProgress* progress)
    : ByteFile(std::move(name), remote->size()), remote_(std::move(remote)), progress_(progress) {}
DataFile::DataFile(DataFile&& other) noexcept = default;
DataFile& DataFile::operator=(DataFile&& other) noexcept = default;
DataFile::~DataFile() = default;

absl::StatusOr<DataFile> DataFile::Open(const std::filesystem::path& path, ReadProgress* progress) {
  if (IsUrl(path.native())) {
    if (progress->remote == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          path.string(), ": is a URL (must be a file of this machine); copy the file"));
    }
    NSA_ASSIGN_OR_RETURN(auto remote, progress->remote->Open(path.native(), progress));
    return DataFile(std::move(remote), path.string(), progress);
  }
  NSA_ASSIGN_OR_RETURN(Fd fd, OpenDataFile(path));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, path.string());
  return DataFile(std::move(fd), path.string(), info.st_size, progress);
}

void DataFile::ExpectUpTo(int64_t end) const {
  if (remote_ != nullptr) remote_->ExpectUpTo(end);
}

absl::Status DataFile::ReadAt(int64_t offset, std::span<char> to) const {
  if (remote_ != nullptr) {
    if (std::ssize(to) > size() - offset) return EndsEarly(size());
    return remote_->ReadAt(offset, to);
  }
  while (!to.empty()) {
    if (progress_->cancelled) return absl::CancelledError(absl::StrCat(name(), ": cancelled"));
    const ssize_t count = pread(fd_.get(), to.data(), to.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name(), ": read"));
    if (count == 0) return EndsEarly(offset);
    progress_->bytes += count;
    offset += count;
    to = to.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status DataFile::EndsEarly(int64_t at) const {
  return absl::DataLossError(absl::StrFormat(
      "%s: ends at byte %d (%d when it was opened); do not change data files during a run", name(),
      at, size()));
}

}  // namespace nsa::train
