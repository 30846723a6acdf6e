// Reads a folder of prepared data (common/job/data/prepared.h).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data/prepared.h"
#include "worker/train/data/prepared/shard_document.h"
#include "worker/train/data/remote/progress.h"

namespace nsa::train {

class PreparedFolder {
 public:
  // Reads the manifest and compares the length of every file. The errors of ReadPrepared() and
  // CheckPreparedFiles(). `progress` must outlive the object.
  static absl::StatusOr<PreparedFolder> Open(const std::filesystem::path& path,
                                             ReadProgress* progress);

  const std::filesystem::path& path() const { return path_; }
  const v1::PreparedManifest& manifest() const { return manifest_; }

  // Calls `visit` for every document in order, and returns its first error. Reads the indexes, not
  // the tokens: 32 bytes of memory for each document of a shard. DataLoss, naming the file, for an
  // index that does not fit the tokens; Cancelled.
  using Visit = std::function<absl::Status(const ShardDocument&)>;
  absl::Status ForEach(const Visit& visit) const;

  // Keeps an object as long as any shard that ForEach() hands out from now on.
  void KeepWhileMapped(std::shared_ptr<const void> kept) { kept_ = std::move(kept); }

  // Reads the indexes and hashes of the documents and compares the hash of these files with the
  // manifest. The errors of Verify().
  absl::Status VerifyIndexes() const;

  // Reads everything and compares the hash of every file with the manifest. DataLoss, naming the
  // first file that differs; Cancelled.
  absl::Status Verify() const;

 private:
  PreparedFolder(std::filesystem::path path, v1::PreparedManifest manifest, ReadProgress* progress)
      : path_(std::move(path)), manifest_(std::move(manifest)), progress_(progress) {}
  absl::Status ForEachOf(const v1::PreparedShard& shard, const Visit& visit) const;
  absl::Status VerifyFile(const std::filesystem::path& file, const std::string& sha256) const;

  std::filesystem::path path_;
  v1::PreparedManifest manifest_;
  ReadProgress* progress_;
  std::shared_ptr<const void> kept_;
};

}  // namespace nsa::train
