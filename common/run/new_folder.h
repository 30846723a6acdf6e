// A folder that is there whole or not at all.
#pragma once

#include <filesystem>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

// Write files into path(), then Publish(). Without that everything is removed again. Move-only.
class NewFolder {
 public:
  // Creates a folder beside `target`, which must not exist or be an empty folder:
  // FailedPrecondition otherwise. Parents are created. The folder is called
  // TARGET.nsa-unfinished-XXXXXX and locked (flock); folders beside it that a killed process left
  // under such names, unlocked and an hour old, are removed.
  static absl::StatusOr<NewFolder> Create(const std::filesystem::path& target);

  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  ~NewFolder();

  const std::filesystem::path& path() const { return path_; }

  // Syncs the folder and gives it its name.
  absl::Status Publish();

 private:
  NewFolder(std::filesystem::path target, std::filesystem::path path, Fd lock);
  std::filesystem::path target_;
  std::filesystem::path path_;  // empty when there is nothing to remove
  Fd lock_;
};

}  // namespace nsa
