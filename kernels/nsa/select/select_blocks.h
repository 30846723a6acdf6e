// Block selection: which n blocks of l' tokens the h heads of a group attend at each token.
//
//   p[a,i]   = softmax_i(scale · q[b,t,a,:]·k[b,i,g,:])  over the visible compressed blocks i
//   score[j] = Σ_{a in group g} Σ_i p[a,i] · |block i of the compression ∩ block j| / l   (eq. 9,
//   10)
//
// With c = ⌊t/l'⌋ and f = ⌊doc_start[b,t]/l'⌋ (0 without documents) the blocks {f, c−1, c} are
// forced (those of them that are ≥ f); then come the best others among f+1 … c−2, which lie wholly
// in the past, until n are chosen: higher score first, the lower id on equal scores, NaN last. If f
// … c are not more than n blocks, all of them are chosen and no score is computed.
//
// Nothing after t is read, and no gradient flows through the choice. The scores live a row at a
// time: neither [S, S_cmp] nor [S, S_sel] is stored unless asked for.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/nsa_shape.h"
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
  Tensor scores;  // optional fp32 [B, S, G, S_sel], overwritten: score, 0 where nothing maps
};

// The choice alone, from given scores: both backends choose the same blocks from the same scores.
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
