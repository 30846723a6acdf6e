#include "worker/train/data/remote/remote_file.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread_name.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kReadLook = absl::Milliseconds(100);  // between looks at the progress

}  // namespace

// What the reader and the thread share.
struct RemoteFile::Shared {
  Shared(const RemoteOptions& the_options, std::shared_ptr<BlockCache> a_cache, std::string a_name,
         const std::string& url, FileVersion a_version, ReadProgress* progress)
      : options(the_options),
        cache(std::move(a_cache)),
        name(std::move(a_name)),
        version(std::move(a_version)),
        bytes(progress->bytes),
        fetcher(options, name, url,
                {.cancelled = &ending, .bytes = &bytes, .sleep = [this](absl::Duration time) {
                   return Sleep(time);
                 }}) {}

  using Block = std::shared_ptr<const std::string>;

  // The thread's loop.
  void Run() {
    NameThread("remote");
    while (const std::optional<int64_t> block = AwaitWork()) {
      std::string content;
      const absl::Status status = Fetch(*block, &content);
      const MutexLock lock(&mutex);
      if (status.ok()) {
        ready[*block] = std::make_shared<const std::string>(std::move(content));
      } else {
        failed[*block] = status;
      }
      changed.SignalAll();
    }
  }

  // The block to fetch next; nothing when the thread must end.
  std::optional<int64_t> AwaitWork() {
    const MutexLock lock(&mutex);
    while (!ending) {
      if (const std::optional<int64_t> block = NextBlock()) return block;
      changed.Wait(&mutex);
    }
    return std::nullopt;
  }

  bool Has(int64_t block) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return ready.contains(block) || failed.contains(block);
  }

  // The block that the reader waits for, or one ahead of it.
  std::optional<int64_t> NextBlock() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (wanted < 0) return std::nullopt;
    if (!Has(wanted)) return wanted;
    for (int64_t block = wanted + 1; block <= wanted + options.blocks_ahead; ++block) {
      const int64_t begin = block * options.block_bytes;
      if (begin >= expected_end || !failed.empty()) break;
      if (!Has(block)) return block;
    }
    return std::nullopt;
  }

  absl::Status Fetch(int64_t block, std::string* content) {
    const int64_t begin = block * options.block_bytes;
    const int64_t end = std::min(version.size, begin + options.block_bytes);
    const std::string key = KeyOf(block);
    if (!key.empty()) {
      if (std::optional<std::string> kept = cache->Find(key)) {
        bytes += std::ssize(*kept);
        *content = *std::move(kept);
        if (std::ssize(*content) == end - begin) return absl::OkStatus();
        content->clear();
      }
    }
    const absl::Status status = fetcher.Read(version, begin, end, content);
    if (status.ok() && !key.empty()) cache->Keep(key, *content);
    return status;
  }

  // What the cache knows a block by; empty for a file whose versions cannot be told apart.
  std::string KeyOf(int64_t block) const {
    if (version.etag.empty() && version.last_modified.empty()) return "";
    return absl::StrCat(name, "\n", options.endpoint, "\n", version.etag, "\n",
                        version.last_modified, "\n", version.size, "\n", options.block_bytes, "\n",
                        block);
  }

  // Waits; false when the thread must end.
  bool Sleep(absl::Duration time) {
    const RealClock clock;
    const absl::Duration until = clock.Monotonic() + time;
    const MutexLock lock(&mutex);
    while (!ending && clock.Monotonic() < until) {
      changed.WaitFor(&mutex, until - clock.Monotonic());
    }
    return !ending;
  }

  // Asks for a block, and forgets those far behind it or ahead of it.
  void Want(int64_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (wanted == block) return;
    wanted = block;
    std::erase_if(ready, [&](const auto& one) {
      return one.first < block - 1 || one.first > block + options.blocks_ahead;
    });
    changed.SignalAll();
  }

  const RemoteOptions& options;
  const std::shared_ptr<BlockCache> cache;
  const std::string name;
  const FileVersion version;
  std::atomic<int64_t>& bytes;
  std::atomic<bool> ending = false;
  Fetcher fetcher;  // used by the thread only
  Mutex mutex;
  CondVar changed;
  std::map<int64_t, Block> ready ABSL_GUARDED_BY(mutex);
  std::map<int64_t, absl::Status> failed ABSL_GUARDED_BY(mutex);
  int64_t wanted ABSL_GUARDED_BY(mutex) = -1;  // block
  int64_t expected_end ABSL_GUARDED_BY(mutex) = 0;
  std::thread thread;
};

RemoteFile::RemoteFile(const RemoteOptions& options, std::shared_ptr<BlockCache> cache,
                       std::string name, const std::string& url, FileVersion version,
                       ReadProgress* progress)
    : size_(version.size),
      progress_(progress),
      shared_(std::make_unique<Shared>(options, std::move(cache), std::move(name), url,
                                       std::move(version), progress)) {
  shared_->thread = std::thread([shared = shared_.get()] { shared->Run(); });
}

RemoteFile::~RemoteFile() {
  {
    const MutexLock lock(&shared_->mutex);
    shared_->ending = true;
    shared_->changed.SignalAll();
  }
  shared_->thread.join();
}

void RemoteFile::ExpectUpTo(int64_t end) {
  const MutexLock lock(&shared_->mutex);
  shared_->expected_end = std::min(end, size_);
  shared_->changed.SignalAll();
}

absl::StatusOr<std::shared_ptr<const std::string>> RemoteFile::Await(int64_t block) {
  const MutexLock lock(&shared_->mutex);
  shared_->Want(block);
  while (true) {
    if (progress_->cancelled) {
      return absl::CancelledError(absl::StrCat(shared_->name, ": cancelled"));
    }
    if (const auto found = shared_->ready.find(block); found != shared_->ready.end()) {
      return found->second;
    }
    if (const auto found = shared_->failed.find(block); found != shared_->failed.end()) {
      return found->second;
    }
    shared_->changed.WaitFor(&shared_->mutex, kReadLook);
  }
}

absl::Status RemoteFile::ReadAt(int64_t offset, std::span<char> to) {
  const int64_t block_bytes = shared_->options.block_bytes;
  while (!to.empty()) {
    const absl::StatusOr<std::shared_ptr<const std::string>> block = Await(offset / block_bytes);
    if (!block.ok()) return block.status();
    const auto within = static_cast<size_t>(offset % block_bytes);
    const size_t count = std::min(to.size(), (*block)->size() - within);
    std::memcpy(to.data(), (*block)->data() + within, count);
    to = to.subspan(count);
    offset += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
