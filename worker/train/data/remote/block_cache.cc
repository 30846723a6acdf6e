#include "worker/train/data/remote/block_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/write.h"
#include "common/run/atomic_file.h"
#include "worker/train/data/cache/cache_folder.h"

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
    if (off_ || size > most_bytes_ || !HasRoom(size)) return;
    room_ -= size;
  }
  Write(PathOf(what), block);
}

// Makes room from time to time: looking at the whole folder takes a while. There may be none while
// tokens that somebody maps fill the folder.
bool BlockCache::HasRoom(int64_t size) {
  constexpr int kPassed = 64;  // blocks that are not kept before the folder is looked at again
  if (size <= room_) return true;
  if (passed_ > 0 && passed_ < kPassed) {
    ++passed_;
    return false;
  }
  room_ = CacheFolder(folder_, most_bytes_).MakeRoom(std::max<int64_t>(most_bytes_ / 16, 1));
  passed_ = size <= room_ ? 0 : 1;
  return passed_ == 0;
}

}  // namespace nsa::train
