// Blocks of remote files in a folder, so that ranks of one machine and later starts need not fetch
// them again. Processes share the folder.
//
//   FOLDER/3f/3f0c….block    magic "NSABLK01", XXH3-128 of the content (16 bytes), the content
//
// A block whose hash is not that of its content is deleted and fetched again. The folder also has
// the tokens of large data (cache/cache_folder.h). Once it exceeds its size, what was not used for
// the longest time is deleted. It has mode 0700: a block may come from a private data set.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/mutex.h"

namespace nsa::train {

// Thread-safe. Never an error: what cannot be kept or found is fetched. A folder that cannot be
// written to is reported once in the log.
class BlockCache {
 public:
  // Without a folder nothing is kept.
  BlockCache(std::filesystem::path folder, int64_t most_bytes);

  // The block that was kept for `what`, which must name the file, its version and the place in it.
  std::optional<std::string> Find(std::string_view what);
  void Keep(std::string_view what, std::string_view block);

 private:
  std::filesystem::path PathOf(std::string_view what) const;
  void Write(const std::filesystem::path& path, std::string_view block);
  bool HasRoom(int64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TurnOff(const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::filesystem::path folder_;
  const int64_t most_bytes_;
  Mutex mutex_;
  bool off_ ABSL_GUARDED_BY(mutex_);
  // Bytes that may still be written before the folder is counted again, because other processes
  // write into it too.
  int64_t room_ ABSL_GUARDED_BY(mutex_) = 0;
  int passed_ ABSL_GUARDED_BY(mutex_) = 0;        // blocks since there was no room
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;  // makes the names of new files
};

}  // namespace nsa::train
