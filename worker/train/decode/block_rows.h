// One block of the decoder (worker/train/model/block/block.h) on new tokens, with a cache of
// earlier ones.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "worker/train/decode/layer_cache.h"
#include "worker/train/decode/rotation.h"
#include "worker/train/decode/sequence_memory.h"
#include "worker/train/model/block/block.h"
#include "worker/train/model/model_config.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

struct BlockRowsArgs {
  const ModelConfig& config;
  NsaLayerConfig attention;  // of this layer
  const BlockPlaces& places;
  const Arena& parameters;
  const Rotation* rotation = nullptr;  // CPU only: set to the positions of the tokens
  const DecodeWork& work;              // x is read and overwritten
  LayerCache* cache = nullptr;         // the tokens are appended; on a GPU there is room for them
  // A single token on a GPU: it completes a compression block, for which there is room too.
  bool completes_block = false;
  int64_t first = 0;  // position of the first token; on a GPU the last that it may have
  std::span<const int32_t> doc_start;  // of each token: where its document begins
  Tensor keys_read;                    // int64 [kBranches] of this layer, added to
};

// Errors are those of the kernels; the cache is then no longer valid.
absl::Status BlockRows(const Exec& exec, const BlockRowsArgs& args);

}  // namespace nsa::train
