// Tokens that follow each other without a gap, wherever they are: in a file that is mapped
// (token_map.h) or in memory (prepared/held_shards.h).
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {

class TokenShard {
 public:
  virtual ~TokenShard() = default;

  // In tokens.
  virtual int64_t size() const = 0;

  // Copies to.size() tokens from `begin` on, which must all be there. DataLoss if a file has become
  // shorter.
  virtual absl::Status Copy(int64_t begin, std::span<Token> to) const = 0;
};

}  // namespace nsa::train
