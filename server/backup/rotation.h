// A folder of backups: a new one is made in it, and the oldest go.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/backup/backup.h"

namespace nsa::server {

struct Rotated {
  std::filesystem::path backup;  // the new one: FOLDER/nsa-20261129T053000Z
  BackupSize size;
  std::vector<std::string> removed;  // names of those that were deleted, the oldest first
};

// Makes a backup of `state_dir` in `folder` (BackUp()), and then deletes all but the newest `keep`
// of the folders in `folder` that have such a name and a manifest; nothing else is touched. After
// an error nothing has been deleted. InvalidArgument for a `keep` below 1; NotFound if there is no
// such folder.
absl::StatusOr<Rotated> BackUpAndRotate(const std::filesystem::path& state_dir,
                                        const std::filesystem::path& folder, int keep,
                                        absl::Time now);

}  // namespace nsa::server
