// The tensors of an attention call in boxes, which Hopper's copy engine brings to shared memory
// (cuda/tensor_box.cuh). Used for tiles of 64 columns; in those of wider ones panels alternate.
#pragma once

#include "kernels/cuda/tensor_box.cuh"

namespace nsa::cuda {

struct AttentionBoxes {
  TensorMap k, v;    // a box: a group's 64 rows
  TensorMap q, d_o;  // a box: the heads of a group for one or more tokens. d_o in backward only
};
template <int kD>
constexpr bool kByBoxes = kByWarpGroup<kD>&& kD == 64;

}  // namespace nsa::cuda
