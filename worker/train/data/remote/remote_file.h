// A file on a web server, read at given offsets as if it were local.
//
// It is fetched in blocks of RemoteOptions.block_bytes, each at a multiple of that, by a thread of
// the file, which also fetches blocks ahead of the reader within the range that the reader expects
// to read. Memory: blocks_ahead + 2 blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/data/remote/block_cache.h"
#include "worker/train/data/remote/fetch.h"
#include "worker/train/data/remote/options.h"
#include "worker/train/data/remote/progress.h"

namespace nsa::train {

// Only one thread at a time may use an object.
class RemoteFile {
 public:
  // `name` is what the job calls the file, `url` where it is. `progress` must outlive the object.
  RemoteFile(const RemoteOptions& options, std::shared_ptr<BlockCache> cache, std::string name,
             const std::string& url, FileVersion version, ReadProgress* progress);
  // Ends the thread; this takes up to a second while it waits for the server.
  ~RemoteFile();

  RemoteFile(const RemoteFile&) = delete;
  RemoteFile& operator=(const RemoteFile&) = delete;

  int64_t size() const { return size_; }

  // Fills `to` with the bytes from `offset` on, which must all be in the file. The errors of
  // Fetcher::Read(); Cancelled if ReadProgress says so.
  absl::Status ReadAt(int64_t offset, std::span<char> to);

  // From now on what lies before `end` will be read in order; nothing behind it is fetched ahead.
  void ExpectUpTo(int64_t end);

 private:
  struct Shared;
  absl::StatusOr<std::shared_ptr<const std::string>> Await(int64_t block);

  const int64_t size_;
  ReadProgress* const progress_;
  const std::unique_ptr<Shared> shared_;
};

}  // namespace nsa::train
