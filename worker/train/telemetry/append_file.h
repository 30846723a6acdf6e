// Files that grow by whole records and stay whole: whatever moment the process is killed at, a file
// holds whole records only, and a run that was resumed does not write a step twice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "worker/train/folder.h"

namespace nsa {

// One thread at a time.
class AppendFile {
 public:
  // How much of an existing file's content to keep; 0 when it is not such a file.
  using Keep = std::function<size_t(std::string_view content)>;

  // Opens or creates `name` in `folder` and cuts off what `keep` does not keep. A file of which
  // nothing is kept, though it had content, steps aside as `name`.old. A file that is then empty
  // begins with `header`.
  static absl::StatusOr<std::unique_ptr<AppendFile>> Open(Folder folder, const std::string& name,
                                                          std::string_view header,
                                                          const Keep& keep);

  // Appends with one write(2). When that fails or is cut short (a full disk) the file is as before.
  absl::Status Append(std::string_view record);

  // FailedPrecondition when another file, or none, has the name by now. Records still go to the
  // one that was opened.
  absl::Status CheckInPlace() const { return folder_.CheckInPlace(name_, fd_.get()); }

 private:
  AppendFile(Folder folder, std::string name, Fd fd)
      : folder_(std::move(folder)), name_(std::move(name)), fd_(std::move(fd)) {}
  std::string path() const { return (folder_.path() / name_).string(); }

  const Folder folder_;
  const std::string name_;
  const Fd fd_;
  int64_t size_ = 0;
};

// Keeps whole lines up to the first one whose step is above `last_step`. `header` must be the first
// line (empty: there is none). `step_of` says a line's step, −1 for a line that is none of ours.
size_t KeepLines(std::string_view content, std::string_view header, int64_t last_step,
                 const std::function<int64_t(std::string_view line)>& step_of);

// The number that a CSV line begins with, or behind `"step":` of a JSON line; −1 without one.
int64_t StepOfCsv(std::string_view line);
int64_t StepOfJson(std::string_view line);

}  // namespace nsa
