// The tokens of a file, mapped into memory: they are read when a row needs them, and all ranks of a
// machine share what the kernel keeps of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "worker/train/data/tokens/token.h"
#include "worker/train/data/tokens/token_shard.h"

namespace nsa::train {

// Immutable; threads may share one. A file that becomes shorter is noticed before it is read. An
// error of the disk below the file ends the process with SIGBUS, as it does for every mapped file.
class TokenMap final : public TokenShard {
 public:
  // Maps a file of `count` tokens of `width` bytes each (1, 2 or 4, little-endian) and nothing
  // else. NotFound or PermissionDenied; DataLoss for another length. Each names the file.
  static absl::StatusOr<std::shared_ptr<const TokenMap>> Open(const std::filesystem::path& path,
                                                              int width, int64_t count);
  ~TokenMap() override;
  TokenMap(const TokenMap&) = delete;
  TokenMap& operator=(const TokenMap&) = delete;

  int64_t size() const override { return count_; }
  absl::Status Copy(int64_t begin, std::span<Token> to) const override;

 private:
  TokenMap(Fd fd, std::string name, int width, int64_t count);
  int64_t bytes() const { return count_ * width_; }

  const Fd fd_;
  const std::string name_;
  const int width_;
  const int64_t count_;
  const std::byte* data_ = nullptr;
};

}  // namespace nsa::train
