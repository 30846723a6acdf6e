// What decoding keeps of the tokens so far, for one layer:
//
//   win  the last w keys and values; in a full layer all of them
//   cmp  the compressed keys and values, one more every d tokens, and the rows of the next block
//   sel  all keys and values; in a layer without cmp also the averages of l keys that score blocks
//
// Keys are rotated. Rows are [G, dk] or [G, dv]; row t is token t's, compressed row i block i's.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "kernels/exec.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "worker/train/decode/row_cache.h"
#include "worker/train/model/activations.h"

namespace nsa::train {

// Most tokens that are computed at a time.
inline constexpr int64_t kDecodeRows = 64;

struct LayerCache {
  std::array<RowCache, kBranches> k, v;
  RowCache k_cmp, v_cmp;

  LayerCache() = default;
  // Plans the memory of a layer; the shape's seq_len is the most tokens of the sequence.
  LayerCache(const NsaLayerConfig& config, ActivationArena* arena);

  void Bind(const ActivationArena& arena);
  void Clear();

  // Makes room for the keys and values of `rows` more tokens in every branch. The caller writes
  // them: row end() − rows on of each. The error is that of a copy.
  absl::Status Append(const Exec& exec, int64_t rows);

  // Makes room for one more compression block, which the caller writes (CompressBlock()).
  absl::Status AppendBlock(const Exec& exec);
};

// Whether token number `tokens` − 1 completes a compression block.
inline bool CompletesBlock(const NsaShape& shape, int64_t tokens) {
  return tokens >= shape.l && (tokens - shape.l) % shape.d == 0;
}

// Most compression blocks that kDecodeRows tokens complete.
inline int64_t MostNewBlocks(const NsaShape& shape) { return (kDecodeRows - 1) / shape.d + 1; }

// Compresses the blocks that the rows appended last have completed. `hidden_k` and `hidden_v` are
// scratch memory of φ mlp, MostNewBlocks() · G · m floats each.
absl::Status CompressNewBlocks(const Exec& exec, const NsaLayerConfig& config,
                               const NsaLayerParams& params, const Tensor& hidden_k,
                               const Tensor& hidden_v, LayerCache* cache);

// On a GPU: compresses the block whose last token is at position at[0], for which AppendBlock() has
// made room. `at` is that of CompressArgs; the host's place in the caches is not used, so that a
// captured launch serves every block.
absl::Status CompressBlock(const Exec& exec, const NsaLayerConfig& config,
                           const NsaLayerParams& params, const Tensor& hidden_k,
                           const Tensor& hidden_v, const ConstTensor& at, const LayerCache& cache);

}  // namespace nsa::train
