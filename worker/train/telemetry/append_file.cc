#include "worker/train/telemetry/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"

namespace nsa::train {

absl::StatusOr<std::unique_ptr<AppendFile>> AppendFile::Open(Folder folder, const std::string& name,
                                                             std::string_view header,
                                                             const Keep& keep) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND;
  NSA_ASSIGN_OR_RETURN(Fd fd, folder.Open(name, kFlags));
  auto file = std::unique_ptr<AppendFile>(new AppendFile(folder, name, std::move(fd)));
  NSA_ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(file->fd_.get(), file->path()));
  const size_t kept = keep(content);
  if (kept == 0 && !content.empty()) {
    NSA_RETURN_IF_ERROR(folder.Rename(name, name + ".old"));
    NSA_ASSIGN_OR_RETURN(fd, folder.Open(name, kFlags));
    file.reset(new AppendFile(std::move(folder), name, std::move(fd)));
  }
  if (ftruncate(file->fd_.get(), static_cast<off_t>(kept)) != 0) {
    return absl::ErrnoToStatus(errno, file->path());
  }
  file->size_ = static_cast<int64_t>(kept);
  if (kept == 0 && !header.empty()) NSA_RETURN_IF_ERROR(file->Append(header));
  return file;
}

absl::Status AppendFile::Append(std::string_view record) {
  ssize_t written = 0;
  do {
    written = write(fd_.get(), record.data(), record.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(record.size())) {
    size_ += written;
    return absl::OkStatus();
  }
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0 && ftruncate(fd_.get(), size_) != 0) {
    return absl::DataLossError(absl::StrCat(path(), ": a record was cut short"));
  }
  return absl::ErrnoToStatus(error, path());
}

size_t KeepLines(std::string_view content, std::string_view header, int64_t last_step,
                 const std::function<int64_t(std::string_view)>& step_of) {
  if (content.substr(0, header.size()) != header) return 0;
  size_t kept = header.size();
  while (true) {
    const size_t end = content.find('\n', kept);
    if (end == std::string_view::npos) return kept;
    const int64_t step = step_of(content.substr(kept, end - kept));
    if (step < 0 || step > last_step) return kept;
    kept = end + 1;
  }
}

int64_t StepOfCsv(std::string_view line) {
  int64_t step = -1;
  const auto result = std::from_chars(line.data(), line.data() + line.size(), step);
  return result.ec == std::errc() && result.ptr != line.data() + line.size() && *result.ptr == ','
             ? step
             : -1;
}

int64_t StepOfJson(std::string_view line) {
  constexpr std::string_view kKey = "\"step\":";
  const size_t key = line.find(kKey);
  if (key == std::string_view::npos || line.empty() || line.back() != '}') return -1;
  int64_t step = -1;
  const auto result =
      std::from_chars(line.data() + key + kKey.size(), line.data() + line.size(), step);
  return result.ec == std::errc() ? step : -1;
}

}  // namespace nsa::train
