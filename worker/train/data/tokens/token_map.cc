#include "worker/train/data/tokens/token_map.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/job_file.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

absl::Status CheckLength(int fd, const std::string& name, int64_t wanted) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, name);
  if (info.st_size == wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s: %d bytes (must be %d); do not change prepared data during a run, and prepare it "
      "again",
      name, info.st_size, wanted));
}

}  // namespace

TokenMap::TokenMap(Fd fd, std::string name, int width, int64_t count)
    : fd_(std::move(fd)), name_(std::move(name)), width_(width), count_(count) {}

TokenMap::~TokenMap() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes()));
}

absl::StatusOr<std::shared_ptr<const TokenMap>> TokenMap::Open(const std::filesystem::path& path,
                                                               int width, int64_t count) {
  NSA_ASSIGN_OR_RETURN(Fd fd, OpenJobFile(path));
  NSA_RETURN_IF_ERROR(CheckLength(fd.get(), path.string(), count * width));
  const std::shared_ptr<TokenMap> map(new TokenMap(std::move(fd), path.string(), width, count));
  if (map->bytes() == 0) return map;
  void* const at =
      mmap(nullptr, static_cast<size_t>(map->bytes()), PROT_READ, MAP_SHARED, map->fd_.get(), 0);
  if (at == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat(path.string(), ": mmap"));
  map->data_ = static_cast<const std::byte*>(at);
  return map;
}

absl::Status TokenMap::Copy(int64_t begin, std::span<Token> to) const {
  NSA_RETURN_IF_ERROR(CheckLength(fd_.get(), name_, bytes()));
  UnpackTokens(data_ + begin * width_, width_, to);
  return absl::OkStatus();
}

}  // namespace nsa::train
