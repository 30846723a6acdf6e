#include "worker/train/checkpoint/durable_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/durable_folder.h"
#include "common/status.h"

namespace nsa {
namespace {

// Hashing and writing alternate in pieces that stay in the cache.
constexpr size_t kPiece = size_t{4} << 20;

}  // namespace

struct DurableFile::State {
  State(std::filesystem::path p, int f) : path(std::move(p)), fd(f), hash(XXH3_createState()) {
    XXH3_128bits_reset(hash);
  }
  ~State() {
    close(fd);
    XXH3_freeState(hash);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  absl::Status Error(std::string_view what) const {
    return absl::ErrnoToStatus(errno, absl::StrCat(path.filename().string(), ": ",
                                                   absl::string_view(what.data(), what.size())));
  }

  const std::filesystem::path path;
  const int fd;
  XXH3_state_t* const hash;
  int64_t bytes = 0;
};

DurableFile::DurableFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
DurableFile::~DurableFile() = default;

absl::StatusOr<std::unique_ptr<DurableFile>> DurableFile::Create(
    const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, path.string());
  return std::unique_ptr<DurableFile>(new DurableFile(std::make_unique<State>(path, fd)));
}

absl::Status DurableFile::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    const ssize_t written = write(state_->fd, piece.data(), piece.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return state_->Error("write");
    XXH3_128bits_update(state_->hash, piece.data(), static_cast<size_t>(written));
    state_->bytes += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointFile> DurableFile::Finish() {
  if (fsync(state_->fd) != 0) return state_->Error("fsync");
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->hash);
  v1::CheckpointFile file;
  file.set_name(state_->path.filename().string());
  file.set_bytes(state_->bytes);
  file.set_xxh3_128(absl::StrFormat("%016x%016x", hash.high64, hash.low64));
  return file;
}

absl::Status PublishFolder(const std::filesystem::path& from, const std::filesystem::path& to) {
  int result = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  if (result != 0 && errno == EEXIST) {
    result = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE);
  } else if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
    // A file system without these flags. rename() replaces nothing but an empty folder, so an older
    // checkpoint of this step steps aside first.
    const std::filesystem::path aside = from.string() + "-replaced";
    if (rename(to.c_str(), aside.c_str()) != 0 && errno != ENOENT) {
      return absl::ErrnoToStatus(errno, absl::StrCat(to.string(), ": rename"));
    }
    result = rename(from.c_str(), to.c_str());
  }
  if (result != 0) return absl::ErrnoToStatus(errno, absl::StrCat(to.string(), ": rename"));
  return SyncFolder(to.parent_path());
}

absl::Status PointLink(const std::filesystem::path& link, const std::string& target) {
  const std::filesystem::path temporary = link.string() + ".tmp";
  if (unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, temporary.string());
  }
  if (symlink(target.c_str(), temporary.c_str()) != 0 ||
      rename(temporary.c_str(), link.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, link.string());
  }
  return SyncFolder(link.parent_path());
}

}  // namespace nsa
