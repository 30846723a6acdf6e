// Stores of tokens that are in memory.
#pragma once

#include <cstdint>
#include <span>

#include "worker/train/data/prepared/held_shards.h"
#include "worker/train/data/tokens/token_store.h"

namespace nsa::train {

// Appends tokens as a document, which goes on in the shard of the one before.
inline void Append(std::span<const Token> tokens, HeldShards* held, TokenStore* store) {
  const ShardDocument document = held->Add({}, tokens);
  store->Append(document.shard, document.begin, document.end);
}

}  // namespace nsa::train
