// Tokens of large data, kept on the machine: the first rank that needs them reads and tokenizes the
// files into a folder of prepared data in the cache (cache/cache_folder.h), the others wait for it,
// and all map it. Later starts and other jobs on the same files map it at once.
//
// Never an obstacle: where the tokens cannot be kept, the caller holds them in memory, and a
// warning in the log says why. The documents, their hashes and their order are those of the files.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/cache/beat.h"
#include "worker/train/data/cache/cache_folder.h"
#include "worker/train/data/cache/cache_options.h"
#include "worker/train/data/prepared/folder.h"
#include "worker/train/data/prepared/set_writer.h"

namespace nsa::train {

// One thread.
class TokenCache {
 public:
  // `progress` must outlive the object.
  TokenCache(TokenCacheOptions options, ReadProgress* progress)
      : options_(std::move(options)),
        folder_(options_.cache.folder, options_.cache.most_bytes, options_.least_free_bytes),
        progress_(progress) {}

  // Whether anything is kept at all.
  bool on() const { return !options_.cache.folder.empty(); }

  // Whether the tokens of a job with so many bytes of files are kept.
  bool IsFor(int64_t bytes) const { return on() && bytes >= options_.large_bytes; }

  // The tokens of files, mapped; they stay in the cache as long as one of the maps exists. Nothing
  // if the caller has to hold them in memory. What is damaged in the cache is deleted and made
  // again. The limits of shards are those of the options. Memory: that of
  // SetWriter::Write().
  //
  // While another process makes them, ReadProgress.bytes goes on as long as that process does, and
  // once it ends without them this one makes them. Errors: those of SetWriter::Write() that come
  // from reading the files; Cancelled within a fraction of a second.
  absl::StatusOr<std::optional<PreparedFolder>> Open(SetOptions set,
                                                     const DocumentEncoder& encoder);

 private:
  struct Making;
  using Mapped = absl::StatusOr<std::optional<PreparedFolder>>;

  absl::StatusOr<std::optional<TokenEntry>> EntryOf(const SetOptions& set,
                                                    const DocumentEncoder& encoder) const;
  absl::StatusOr<PreparedFolder> Map(const SetOptions& set, const TokenEntry& entry) const;
  Mapped MakeAndMap(const SetOptions& set, const DocumentEncoder& encoder, const TokenEntry& entry);
  absl::StatusOr<bool> Make(const SetOptions& set, const DocumentEncoder& encoder,
                            const TokenEntry& entry);
  absl::Status Write(SetOptions set, const DocumentEncoder& encoder, const TokenEntry& entry,
                     Making* making);
  void Tell(const DataFiles& files, const v1::PreparedManifest& manifest, Making* making) const;
  absl::Status Grow(const TokenEntry& entry, const v1::PreparedManifest& manifest,
                    Making* making) const;
  absl::Status CheckNeeds(const TokenEntry& entry) const;
  absl::Status DoesNotFit(int64_t least, int64_t room) const;
  absl::Status Wait(BeatWatch* beat) const;

  const TokenCacheOptions options_;
  const CacheFolder folder_;
  ReadProgress* const progress_;
};

}  // namespace nsa::train
