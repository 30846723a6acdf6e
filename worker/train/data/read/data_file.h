// A regular file, or a file on a web server, that is read at given offsets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/job/data/byte_file.h"
#include "worker/train/data/remote/progress.h"

namespace nsa::train {

class RemoteFile;

// Opens a file of this machine for reading. The errors of OpenJobFile(), which say what to do about
// a file that is not there or may not be read, a folder, a pipe or a device.
absl::StatusOr<Fd> OpenDataFile(const std::filesystem::path& path);

class DataFile final : public ByteFile {
 public:
  DataFile(DataFile&& other) noexcept;
  DataFile& operator=(DataFile&& other) noexcept;
  ~DataFile() override;

  // Opens a path or a URL. NotFound, PermissionDenied, or InvalidArgument (a folder, a pipe or a
  // device; a URL without ReadProgress.remote), naming the file; for a URL the errors of
  // Remote::Open(). `progress` must outlive the object.
  static absl::StatusOr<DataFile> Open(const std::filesystem::path& path, ReadProgress* progress);

  // Fills `to` with the bytes from `offset` on, which is at least 0, and adds their number to the
  // progress. DataLoss, naming the file, if the file ends before; Cancelled; for a URL the errors
  // of RemoteFile::ReadAt().
  absl::Status ReadAt(int64_t offset, std::span<char> to) const override;

  // What lies before `end` will be read in order from now on: of a URL it is fetched ahead.
  void ExpectUpTo(int64_t end) const;

 private:
  DataFile(Fd fd, std::string name, int64_t size, ReadProgress* progress);

  DataFile(std::unique_ptr<RemoteFile> remote, std::string name, ReadProgress* progress);
  absl::Status EndsEarly(int64_t at) const;

  Fd fd_;
  std::unique_ptr<RemoteFile> remote_;  // null: fd_ is open
  ReadProgress* progress_;
};

}  // namespace nsa::train
