// A document whose tokens are in a shard.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/train/data/read/document_hash.h"
#include "worker/train/data/tokens/token_shard.h"

namespace nsa::train {

// Tokens [begin, end) of the shard, with the separator in front if there is one.
struct ShardDocument {
  DocumentHash hash;
  std::shared_ptr<const TokenShard> shard;
  int64_t begin = 0;
  int64_t end = 0;
};

}  // namespace nsa::train
