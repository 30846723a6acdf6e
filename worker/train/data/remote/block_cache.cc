#include "worker/train/data/remote/block_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/run/atomic_file.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "NSABLK01";
constexpr size_t kHeader = 24;

std::string HashOf(std::string_view bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return {reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)};
}

struct Entry {
  fs::file_time_type used;
  int64_t size;
  fs::path path;
};

// The blocks in the folder, and files that a process left when it was killed.
std::vector<Entry> Entries(const fs::path& folder) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const auto size = static_cast<int64_t>(entry->file_size(gone));
    const bool ours = entry->path().extension() == ".block" || entry->path().extension() == ".new";
    if (gone || !ours || !entry->is_regular_file(gone)) continue;
    entries.push_back({entry->last_write_time(gone), size, entry->path()});
  }
  return entries;
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace

BlockCache::BlockCache(fs::path folder, int64_t most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes), off_(folder_.empty()) {}

fs::path BlockCache::PathOf(std::string_view what) const {
  const XXH128_hash_t hash = XXH3_128bits(what.data(), what.size());
  const std::string name = absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  return folder_ / name.substr(0, 2) / (name + ".block");
}

std::optional<std::string> BlockCache::Find(std::string_view what) {
  {
    const MutexLock lock(&mutex_);
    if (off_) return std::nullopt;
  }
  const fs::path path = PathOf(what);
  absl::StatusOr<std::string> file = ReadWholeFile(path);
  if (!file.ok()) return std::nullopt;
  const std::string_view view = *file;
  if (view.size() < kHeader || !view.starts_with(kMagic) ||
      view.substr(kMagic.size(), kHeader - kMagic.size()) != HashOf(view.substr(kHeader))) {
    spdlog::warn("data: {}: not the block that was written; it is deleted and fetched again",
                 path.string());
    unlink(path.c_str());
    return std::nullopt;
  }
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // it was used now
  return std::string(view.substr(kHeader));
}

void BlockCache::TurnOff(const std::string& why) {
  if (off_) return;
  off_ = true;
  spdlog::warn("data: nothing more is kept in {}: {}; data.path is read from its server each time",
               folder_.string(), why);
}

void BlockCache::Write(const fs::path& path, std::string_view block) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  std::string name;
  {
    const MutexLock lock(&mutex_);
    name = absl::StrCat(path.string(), ".", getpid(), ".", ++written_, ".new");
  }
  chmod(folder_.c_str(), 0700);
  Fd fd(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = fd.valid() && WriteAll(fd.get(), kMagic) &&
                       WriteAll(fd.get(), HashOf(block)) && WriteAll(fd.get(), block) &&
                       rename(name.c_str(), path.c_str()) == 0;
  if (written) return;
  const std::string why = std::strerror(errno);
  if (fd.valid()) unlink(name.c_str());
  const MutexLock lock(&mutex_);
  TurnOff(why);
}

void BlockCache::Keep(std::string_view what, std::string_view block) {
  const auto size = static_cast<int64_t>(block.size() + kHeader);
  {
    const MutexLock lock(&mutex_);
    if (off_ || size > most_bytes_) return;
    if (size > room_) Shrink();
    room_ -= size;
  }
  Write(PathOf(what), block);
}

// Deletes the oldest blocks until a sixteenth is free.
void BlockCache::Shrink() {
  std::vector<Entry> entries = Entries(folder_);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  int64_t total = 0;
  for (const Entry& entry : entries) total += entry.size;
  const int64_t wanted = most_bytes_ - std::max<int64_t>(most_bytes_ / 16, 1);
  for (const Entry& entry : entries) {
    if (total <= wanted) break;
    std::error_code error;
    if (fs::remove(entry.path, error)) total -= entry.size;
  }
  room_ = std::max<int64_t>(most_bytes_ - total, 0);
}

}  // namespace nsa::train
