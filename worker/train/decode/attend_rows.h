// Attention of new tokens over the cache of their layer: what NsaLayer (kernels/nsa/layer) computes
// for these rows, on the CPU with the same loops over the keys, on a GPU by
// kernels/nsa/decode.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "kernels/exec.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "worker/train/decode/layer_cache.h"
#include "worker/train/decode/sequence_memory.h"

namespace nsa::train {

struct AttendRowsArgs {
  const NsaLayerConfig& config;
  const NsaLayerParams& params;
  const LayerCache& cache;  // ends with the keys of these tokens
  const DecodeWork& work;   // q and q_rotated are read, o is written
  ConstTensor at;           // on a GPU: AttendCachedArgs::at of this layer
  int64_t first = 0;        // position of the first token; on a GPU the last that it may have
  std::span<const int32_t> doc_start;  // of each token; on a GPU work.doc_start has the same
  Tensor keys_read;                    // int64 [kBranches], added to
};

// keys_read counts the keys that each branch read: a key once for all heads of a group.
absl::Status AttendRows(const Exec& exec, const AttendRowsArgs& args);

}  // namespace nsa::train
