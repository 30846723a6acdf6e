#include "worker/train/data/prepared/folder.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/sha256.h"
#include "common/job/data/token_layout.h"
#include "worker/train/data/read/data_file.h"
#include "worker/train/data/tokens/token_map.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

// A file of a shard.
fs::path FileOf(const fs::path& folder, const v1::PreparedShard& shard, const char* ending) {
  return folder / (shard.name() + ending);
}

absl::StatusOr<std::string> ReadWhole(const fs::path& path, ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(const DataFile file, DataFile::Open(path, progress));
  return file.Head(file.size());
}

// The shard, which from now on keeps `kept` too.
std::shared_ptr<const TokenShard> With(std::shared_ptr<const TokenShard> shard,
                                       const std::shared_ptr<const void>& kept) {
  if (kept == nullptr) return shard;
  const TokenShard* const alone = shard.get();
  return {
      std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const TokenShard>>>(
          kept, std::move(shard)),
      alone};
}

}  // namespace

absl::StatusOr<PreparedFolder> PreparedFolder::Open(const fs::path& path, ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(v1::PreparedManifest manifest, ReadPrepared(path));
  NSA_RETURN_IF_ERROR(CheckPreparedFiles(path, manifest));
  return PreparedFolder(path, std::move(manifest), progress);
}

absl::Status PreparedFolder::ForEach(const Visit& visit) const {
  for (const v1::PreparedShard& shard : manifest_.shards()) {
    NSA_RETURN_IF_ERROR(ForEachOf(shard, visit));
  }
  return absl::OkStatus();
}

absl::Status PreparedFolder::ForEachOf(const v1::PreparedShard& shard, const Visit& visit) const {
  const fs::path bin = FileOf(path_, shard, ".bin");
  NSA_ASSIGN_OR_RETURN(const DataFile tokens, DataFile::Open(bin, progress_));
  NSA_ASSIGN_OR_RETURN(const DataFile index,
                       DataFile::Open(FileOf(path_, shard, ".idx"), progress_));
  NSA_ASSIGN_OR_RETURN(const TokenLayout layout, MegatronLayout(tokens, index));
  NSA_ASSIGN_OR_RETURN(const std::string hashes,
                       ReadWhole(FileOf(path_, shard, ".hash"), progress_));
  const std::vector<int64_t>& ends = *layout.document_ends;
  const auto documents = static_cast<int64_t>(hashes.size()) / kDocumentHashBytes;
  if (layout.width != manifest_.token_bytes() || layout.count != shard.tokens() ||
      std::ssize(ends) != shard.documents() || documents != shard.documents()) {
    return absl::DataLossError(absl::StrFormat(
        "%s: %d documents and %d tokens of %d bytes (%d, %d and %d in the manifest); prepare the "
        "data again",
        index.name(), ends.size(), layout.count, layout.width, shard.documents(), shard.tokens(),
        manifest_.token_bytes()));
  }
  ShardDocument document;
  NSA_ASSIGN_OR_RETURN(std::shared_ptr<const TokenMap> map,
                       TokenMap::Open(bin, layout.width, layout.count));
  document.shard = With(std::move(map), kept_);
  for (size_t i = 0; i < ends.size(); ++i) {
    if (progress_->cancelled)
      return absl::CancelledError(absl::StrCat(bin.string(), ": cancelled"));
    document.hash = StoredHash(std::string_view(hashes).substr(i * kDocumentHashBytes));
    document.begin = document.end;
    document.end = ends[i];
    NSA_RETURN_IF_ERROR(visit(document));
  }
  return absl::OkStatus();
}

absl::Status PreparedFolder::VerifyFile(const fs::path& path, const std::string& sha256) const {
  constexpr int64_t kChunk = 1 << 20;
  NSA_ASSIGN_OR_RETURN(const DataFile file, DataFile::Open(path, progress_));
  Sha256Sum sum;
  std::string chunk;
  for (int64_t at = 0; at < file.size(); at += kChunk) {
    chunk.resize(static_cast<size_t>(std::min(kChunk, file.size() - at)));
    NSA_RETURN_IF_ERROR(file.ReadAt(at, chunk));
    sum.Add(chunk);
  }
  const std::string hash = sum.Hex();
  if (hash == sha256) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%s: SHA-256 %s (the manifest says %s); the file is damaged, prepare the "
                      "data again",
                      file.name(), hash, sha256));
}

absl::Status PreparedFolder::VerifyIndexes() const {
  for (const v1::PreparedShard& shard : manifest_.shards()) {
    NSA_RETURN_IF_ERROR(VerifyFile(FileOf(path_, shard, ".idx"), shard.idx_sha256()));
    NSA_RETURN_IF_ERROR(VerifyFile(FileOf(path_, shard, ".hash"), shard.hash_sha256()));
  }
  return absl::OkStatus();
}

absl::Status PreparedFolder::Verify() const {
  NSA_RETURN_IF_ERROR(VerifyIndexes());
  for (const v1::PreparedShard& shard : manifest_.shards()) {
    NSA_RETURN_IF_ERROR(VerifyFile(FileOf(path_, shard, ".bin"), shard.bin_sha256()));
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
