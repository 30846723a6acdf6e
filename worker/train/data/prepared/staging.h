// The folder of a prepared job while it is written: beside its place, under another name.
#pragma once

#include <filesystem>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/run/file_lock.h"

namespace nsa::train {

// Write files into path(), then Publish(); without that everything is removed again. What a killed
// process left is removed by the next one for the same place. Move-only.
class Staging {
 public:
  // Creates OUT.partial, empty and locked. FailedPrecondition if OUT is neither new nor empty nor a
  // prepared job, if OUT.partial is not of such a start, or if another process writes it.
  static absl::StatusOr<Staging> Create(const std::filesystem::path& out);

  Staging(Staging&& other) noexcept;
  Staging& operator=(Staging&&) = delete;
  ~Staging();

  const std::filesystem::path& path() const { return path_; }
  // The place, absolute.
  const std::filesystem::path& target() const { return target_; }

  // Syncs the folder and gives it its name, in place of the prepared job that was there: at no time
  // is half of either under that name. (Where the file system cannot exchange folders, the old one
  // is removed first.)
  absl::Status Publish();

 private:
  Staging(std::filesystem::path target, std::filesystem::path path, FileLock lock);
  absl::Status Exchange();

  std::filesystem::path target_;
  std::filesystem::path path_;  // empty when there is nothing to remove
  FileLock lock_;
};

}  // namespace nsa::train
