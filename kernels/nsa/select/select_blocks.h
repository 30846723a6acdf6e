// Block selection: chooses the n blocks of l' tokens that the h heads of a group attend to at each
// token (eq. 9 and 10).
//
//   p[a,i]   = softmax_i(scale · q[b,t,a,:]·k[b,i,g,:])  over the visible compressed blocks i
//   score[j] = Σ_{a in group g} Σ_i p[a,i] · |compression block i ∩ selection block j| / l
//
// With c = ⌊t/l'⌋ and f = ⌊doc_start[b,t]/l'⌋ (0 without documents) the blocks {f, c−1, c} that are
// ≥ f are forced. The best of the blocks f+1 … c−2, which lie entirely in the past, fill the
// remaining slots up to n: higher score first, the lower id on equal scores, NaN last. If f … c are
// at most n blocks, all of them are chosen and no score is computed.
//
// Nothing after t is read, and no gradient flows through the choice. Scores are computed row by
// row: neither an [S, S_cmp] nor an [S, S_sel] matrix is stored, unless `scores` is given.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/nsa/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct SelectBlocksArgs {
  NsaShape shape;
  float scale = 0;        // 0 means 1/√dk
  ConstTensor q;          // [B, S, H, dk], rotated
  ConstTensor k;          // [B, S_cmp, G, dk], compressed keys
  ConstTensor lse;        // optional fp32 [B, S, H], from CompressedAttention on the same q and k
  ConstTensor doc_start;  // optional int32 [B, S]
  Tensor blocks;  // int32 [B, S, G, n], overwritten: ascending ids, then −1 for empty slots
  // Optional fp32 [B, S, G, S_sel], overwritten; 0 where no visible compressed block overlaps.
  Tensor scores;
};

// The choice alone, from given scores. Both backends choose the same blocks from the same scores.
struct ChooseBlocksArgs {
  NsaShape shape;
  ConstTensor scores;     // fp32 [B, S, G, S_sel]
  ConstTensor doc_start;  // optional int32 [B, S]
  Tensor blocks;          // int32 [B, S, G, n], overwritten
};

// Errors: InvalidArgument when the shape is outside its limits or a tensor differs from its shape.
absl::Status SelectBlocks(const Exec& exec, const SelectBlocksArgs& args);
absl::Status ChooseBlocks(const Exec& exec, const ChooseBlocksArgs& args);

}  // namespace nsa

// The same on a GPU (select_blocks.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status SelectBlocks(const Exec& exec, const SelectBlocksArgs& args);
absl::Status ChooseBlocks(const Exec& exec, const ChooseBlocksArgs& args);

}  // namespace nsa::cuda
