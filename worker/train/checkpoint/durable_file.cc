#include "worker/train/checkpoint/durable_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/checkpoint/content_hash.h"

namespace nsa::train {
namespace {

// Data is written and hashed in pieces that fit into the cache.
constexpr size_t kPiece = size_t{4} << 20;

}  // namespace

struct DurableFile::State {
  State(std::string n, Fd f) : name(std::move(n)), fd(std::move(f)) {}

  absl::Status Error(std::string_view what) const {
    return absl::ErrnoToStatus(
        errno, absl::StrCat(name, ": ", absl::string_view(what.data(), what.size())));
  }

  const std::string name;
  const Fd fd;
  ContentHash hash;
  int64_t bytes = 0;
};

DurableFile::DurableFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
DurableFile::~DurableFile() = default;

absl::StatusOr<std::unique_ptr<DurableFile>> DurableFile::Create(const Folder& folder,
                                                                 const std::string& name) {
  NSA_ASSIGN_OR_RETURN(Fd fd, folder.Create(name));
  return std::unique_ptr<DurableFile>(
      new DurableFile(std::make_unique<State>(name, std::move(fd))));
}

absl::Status DurableFile::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    const ssize_t written = write(state_->fd.get(), piece.data(), piece.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return state_->Error("write");
    state_->hash.Add(piece.first(static_cast<size_t>(written)));
    state_->bytes += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointFile> DurableFile::Finish() {
  if (fsync(state_->fd.get()) != 0) return state_->Error("fsync");
  v1::CheckpointFile file;
  file.set_name(state_->name);
  file.set_bytes(state_->bytes);
  file.set_xxh3_128(state_->hash.Hex());
  return file;
}

}  // namespace nsa::train
