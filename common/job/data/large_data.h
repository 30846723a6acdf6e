// The size from which the data of a job is tokenized once for a machine, into the cache of its
// workers, and mapped from there (worker/train/data/prepared/token_cache.h). Preflight asks here
// too, because no rank holds such data in memory.
#pragma once

#include <cstdint>

namespace nsa {

// Bytes of all data files of a job together, as they are on disk.
inline constexpr int64_t kLargeDataBytes = int64_t{64} << 20;

// Largest size of the cache if nothing else is set (data_cache_bytes of the agent).
inline constexpr int64_t kDataCacheBytes = int64_t{10} << 30;

// The most bytes of documents that a rank holds of files of so many bytes: compressed and repeated
// bytes may become any number, so the loader refuses more, far above what text compresses to.
inline constexpr int64_t kHeldTimes = 64;
inline constexpr int64_t kAlwaysHeld = int64_t{256} << 20;
constexpr int64_t MostHeldOf(int64_t file_bytes) { return kAlwaysHeld + kHeldTimes * file_bytes; }

}  // namespace nsa
