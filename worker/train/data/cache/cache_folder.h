// The folder in which workers keep data on disk. Processes share it, and its size is bounded: what
// was not used for the longest time is deleted first.
//
//   FOLDER/3f/3f0c….block         a block of a remote file (remote/block_cache.h)
//   FOLDER/tokens/KEY.tokens/     tokens of files, as prepared data (prepared/token_cache.h). Who
//                                 maps them shares the lock of its manifest.json
//   FOLDER/tokens/KEY.partial/    the same while it is written or deleted
//   FOLDER/tokens/KEY.lock        locked by who writes or deletes KEY
//   FOLDER/tokens/KEY.needs       the tokens did not fit: the bytes that they need at least
//
// A block was used last when its file was changed, tokens when their manifest.json was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"

namespace nsa::train {

// The files of one KEY.
struct TokenEntry {
  TokenEntry(const std::filesystem::path& cache, const std::string& key)
      : stem((cache / "tokens" / key).string()) {}
  explicit TokenEntry(std::string the_stem) : stem(std::move(the_stem)) {}

  std::filesystem::path tokens() const { return stem + ".tokens"; }
  std::filesystem::path manifest() const { return tokens() / "manifest.json"; }
  std::filesystem::path partial() const { return stem + ".partial"; }
  std::filesystem::path lock() const { return stem + ".lock"; }
  std::filesystem::path needs() const { return stem + ".needs"; }

  // Deletes the tokens, at no time leaving a part of them under their name, and what a killed
  // process left. Those who have mapped them keep them. The caller holds lock().
  absl::Status Delete() const;

  std::string stem;
};

// Bytes of the files in a folder, as far as they are on disk by now; 0 if it is not there.
int64_t BytesIn(const std::filesystem::path& folder);

// Thread-safe, as the file system is.
class CacheFolder {
 public:
  // The bound is also that of the disk: `least_free_bytes` of it stay free.
  CacheFolder(std::filesystem::path folder, int64_t most_bytes, int64_t least_free_bytes = 0)
      : folder_(std::move(folder)), most_bytes_(most_bytes), least_free_bytes_(least_free_bytes) {}

  const std::filesystem::path& path() const { return folder_; }

  // Deletes what was not used for the longest time until `wanted` bytes fit; nothing if that is not
  // possible, because tokens that somebody maps or writes stay. Returns the bytes that may be added
  // now, which may be fewer than `wanted`; 0 or more. Others may add some too.
  int64_t MakeRoom(int64_t wanted) const;

  // The most that MakeRoom() could give. Deletes nothing.
  int64_t PossibleRoom() const;

 private:
  std::filesystem::path folder_;
  int64_t most_bytes_;
  int64_t least_free_bytes_;
};

}  // namespace nsa::train
