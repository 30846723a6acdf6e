// The tokens of a corpus in the order of its documents, which are in shards.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data/tokens/token.h"
#include "worker/train/data/tokens/token_shard.h"

namespace nsa::train {

// Says which tokens of which shards follow each other: 24 bytes of memory for each stretch that is
// without a gap in its shard.
class TokenStore {
 public:
  int64_t size() const { return size_; }

  // Appends tokens [begin, end) of a shard.
  void Append(const std::shared_ptr<const TokenShard>& shard, int64_t begin, int64_t end);

  // Copies to.size() tokens from `begin` on. The errors of TokenShard::Copy().
  absl::Status Copy(int64_t begin, std::span<Token> to) const;

  // Moves tokens [begin, end) to the end of `other`.
  void Move(int64_t begin, int64_t end, TokenStore* other);

 private:
  // Tokens without a gap.
  struct Stretch {
    int64_t begin;  // the first token's index in this store
    int64_t at;     // and in its shard
    int32_t shard;  // index in shards_
  };

  int64_t EndOf(size_t stretch) const;

  int64_t size_ = 0;
  std::vector<Stretch> stretches_;
  std::vector<std::shared_ptr<const TokenShard>> shards_;
};

}  // namespace nsa::train
