// The arguments of the attention branches, forward and backward, the same for all branches: softmax
// attention of each query over the keys that the branch makes visible to it
// (common/nsa/visibility.h).
#pragma once

#include <cstdint>

#include "common/nsa/nsa_shape.h"
#include "kernels/tensor.h"

namespace nsa {

// K is the number of keys in a sequence: S_cmp for the compressed branch, S for the others.
struct BranchArgs {
  NsaShape shape;
  float scale = 0;        // 0 means 1/√dk
  ConstTensor q;          // [B, S, H, dk], rotated
  ConstTensor k;          // [B, K, G, dk], rotated, or the output of Compress
  ConstTensor v;          // [B, K, G, dv]
  ConstTensor blocks;     // selected only: int32 [B, S, G, n], the output of SelectBlocks
  ConstTensor doc_start;  // optional int32 [B, S]: first token of t's document; without it 0
  Tensor o;               // [B, S, H, dv], overwritten
  Tensor lse;             // fp32 [B, S, H], natural log of the softmax's denominator, overwritten
  // Optional int64 [1], overwritten: number of keys read, counted once for all heads of a group.
  Tensor keys_read;
  // Selected only, optional: int64 [kSelectionStats], in the order of SelectionStats, overwritten.
  // On CUDA they are computed on the side stream, so the caller calls Join() (kernels/cuda/side.h).
  Tensor selection_stats;
  // CUDA only: keys_read and selection_stats are 0 when the kernels begin, which add to them.
  // Otherwise the call zeroes them first.
  bool statistics_zeroed = false;
};

struct BranchBackwardArgs {
  NsaShape shape;
  float scale = 0;
  ConstTensor q, k, v, blocks, doc_start, o, lse;  // as in forward
  ConstTensor d_o;                                 // [B, S, H, dv]
  // CUDA only, optional: fp32 [B, S, H, 2], the statistics of each row,
  //   (lse − ln gate) · log2 e   and   δ = Σ_c d_o · o,
  // as GateBackward() writes them. The gradients are then those of gate · o, without a tensor
  // gate · d_o (gate.h). o and lse are not read and may be absent. Without `stats` the branch
  // computes them, with gate = 1. With them, the caller calls Fork() (kernels/cuda/side.h) once
  // they are enqueued, and dk and dv of all branches run on the side stream from there.
  ConstTensor stats;
  Tensor dq;  // [B, S, H, dk], overwritten, or added to when add_to_dq
  Tensor dk;  // [B, K, G, dk], overwritten
  Tensor dv;  // [B, K, G, dv], overwritten
  bool add_to_dq = false;

  // CUDA only, for gradients that go to the columns of a wider matrix: with a stride, tokens of dq,
  // or of dk and dv, are so many elements apart, a multiple of 8, and `size` is still the number of
  // elements written. 0: as above.
  int64_t dq_stride = 0, key_stride = 0;
  // CUDA only, optional: fp32 [S, dk/2, 2], cosine and sine of each position's pairs (RopeAngles(),
  // kernels/nn/rope.h). dq, after the addition, or dk is rotated back by them before it is written.
  ConstTensor dq_angles, dk_angles;
  // CUDA only, optional, with dq_angles: [B, S, G, dk]. After the rotation every head of a group
  // gets dq_mean / h in addition (AddMeanGradient(), kernels/nsa/gate/gate.h).
  ConstTensor dq_mean;
};

}  // namespace nsa
