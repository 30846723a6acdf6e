#include "worker/train/data/prepared/hashed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/write.h"

namespace nsa::train {
namespace {

constexpr size_t kBuffer = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<HashedFile>> HashedFile::Create(const std::filesystem::path& path) {
  Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) return WriteError(errno, path.string());
  return std::unique_ptr<HashedFile>(new HashedFile(std::move(fd), path.string()));
}

absl::Status HashedFile::Append(std::string_view bytes) {
  buffer_ += bytes;
  bytes_ += std::ssize(bytes);
  return buffer_.size() < kBuffer ? absl::OkStatus() : Flush();
}

absl::Status HashedFile::Flush() {
  sum_.Add(buffer_);
  std::string_view left = buffer_;
  while (!left.empty()) {
    const ssize_t count = write(fd_.get(), left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(errno, "write");
    left.remove_prefix(static_cast<size_t>(count));
  }
  buffer_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::string> HashedFile::Finish() {
  NSA_RETURN_IF_ERROR(Flush());
  if (fsync(fd_.get()) != 0) return Failed(errno, "fsync");
  NSA_RETURN_IF_ERROR(Annotate(fd_.Close(), name_));
  return sum_.Hex();
}

absl::StatusOr<std::string> WriteHashedFile(const std::filesystem::path& path,
                                            std::string_view content) {
  NSA_ASSIGN_OR_RETURN(const auto file, HashedFile::Create(path));
  NSA_RETURN_IF_ERROR(file->Append(content));
  return file->Finish();
}

absl::Status HashedFile::Failed(int error, const char* what) const {
  return WriteError(error, absl::StrCat(name_, ": ", what));
}

}  // namespace nsa::train
