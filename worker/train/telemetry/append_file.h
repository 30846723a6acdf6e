// Files to which whole records are appended. A file contains whole records only, even if the
// process is killed, and a resumed run does not write a step twice.
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

namespace nsa::train {

// One thread at a time.
class AppendFile {
 public:
  // How many bytes of an existing file's content to keep; 0 when the file has another format.
  using Keep = std::function<size_t(std::string_view content)>;

  // Opens or creates `name` in `folder` and cuts off what `keep` does not keep. If `keep` returns 0
  // for a file with content, that file is renamed to `name`.old and a new one is created. An empty
  // file gets `header` as its beginning.
  static absl::StatusOr<std::unique_ptr<AppendFile>> Open(Folder folder, const std::string& name,
                                                          std::string_view header,
                                                          const Keep& keep);

  // Appends with one write(2). When that fails or writes only a part (disk full), the file stays as
  // it was.
  absl::Status Append(std::string_view record);

  // FailedPrecondition when the name now belongs to another file or to none. Records still go to
  // the file that was opened.
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

// For AppendFile::Keep: keeps whole lines up to the first one whose step is above `last_step`. The
// content must begin with `header`, which may be empty. `step_of` returns the step of a line, −1
// for a line in another format; such a line ends what is kept.
size_t KeepLines(std::string_view content, std::string_view header, int64_t last_step,
                 const std::function<int64_t(std::string_view line)>& step_of);

// The number at the beginning of a CSV line, or after `"step":` in a JSON line; −1 if there is
// none.
int64_t StepOfCsv(std::string_view line);
int64_t StepOfJson(std::string_view line);

}  // namespace nsa::train
