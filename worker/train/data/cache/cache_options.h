// Where workers keep data on disk, and how much of it: what the environment says.
#pragma once

#include <cstdint>
#include <filesystem>

#include "absl/status/statusor.h"
#include "common/job/data/large_data.h"

namespace nsa::train {

struct CacheOptions {
  std::filesystem::path folder;  // empty: nothing is kept
  int64_t most_bytes = kDataCacheBytes;
};

// From NSA_DATA_CACHE_DIR (default: nsa/data in $XDG_CACHE_HOME, else in ~/.cache) and
// NSA_DATA_CACHE_BYTES (0: nothing is kept). InvalidArgument, naming the
// variable.
absl::StatusOr<CacheOptions> CacheFromEnvironment();

// For the tokens of large data (prepared/token_cache.h).
struct TokenCacheOptions {
  CacheOptions cache = {};  // without a folder all data is held in memory
  // Jobs with fewer bytes of files are held in memory.
  int64_t large_bytes = kLargeDataBytes;
  // Of the disk that the cache leaves free.
  int64_t least_free_bytes = int64_t{1} << 30;
  // Where a shard ends; see ShardWriter::Options. Less than elsewhere: a shard is synced at its
  // end, and the watch over the loader waits for that too.
  int64_t shard_bytes = int64_t{128} << 20;
  int64_t shard_documents = 1 << 20;
};

// Of this machine: CacheFromEnvironment(), and else the defaults.
absl::StatusOr<TokenCacheOptions> TokenCacheFromEnvironment();

}  // namespace nsa::train
