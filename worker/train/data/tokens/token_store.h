// The tokens of a corpus in the order of its documents: held in memory, or mapped from prepared
// data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data/tokens/token.h"
#include "worker/train/data/tokens/token_map.h"

namespace nsa::train {

// Tokens that are held take TokenBytes(vocab) bytes each. Mapped ones take 24 bytes of memory for
// each stretch that is without a gap in its file.
class TokenStore {
 public:
  // Every token must be below `vocab`.
  explicit TokenStore(int32_t vocab) : width_(TokenBytes(vocab)) {}

  int64_t size() const { return size_; }

  void Append(std::span<const Token> tokens);
  // Appends tokens [begin, end) of a file.
  void Append(const std::shared_ptr<const TokenMap>& map, int64_t begin, int64_t end);

  // Copies to.size() tokens from `begin` on. The errors of TokenMap::Copy().
  absl::Status Copy(int64_t begin, std::span<Token> to) const;

  // Moves tokens [begin, end) to the end of `other`, which is for the same vocabulary.
  void Move(int64_t begin, int64_t end, TokenStore* other);

 private:
  // Tokens without a gap, of a file or of bytes_.
  struct Stretch {
    int64_t begin;  // the first token's index in this store
    int64_t at;     // and in the file or in bytes_
    int32_t map;    // index in maps_; kHeld: bytes_
  };
  static constexpr int32_t kHeld = -1;

  int64_t EndOf(size_t stretch) const;
  void Extend(int32_t map, int64_t at, int64_t count);
  void AppendFrom(const TokenStore& other, const Stretch& stretch, int64_t count);
  void EraseHeld(int64_t at, int64_t count);
  absl::Status CopyStretch(const Stretch& stretch, int64_t skip, std::span<Token> to) const;

  const int width_;
  int64_t size_ = 0;
  std::vector<Stretch> stretches_;
  std::vector<uint8_t> bytes_;
  std::vector<std::shared_ptr<const TokenMap>> maps_;
};

}  // namespace nsa::train
