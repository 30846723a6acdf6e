// Attention of a few new tokens over the cached keys and values of their sequence, on a GPU: what
// the layer (kernels/nsa/layer/nsa_layer.h) computes for these rows. On the CPU this is
// worker/train/decode/attend_rows.h.
//
// The keys of a row are divided into parts of 64. A thread block computes the attention of one row
// and group over one part, and the parts are then added up in order, so bits repeat and a single
// row keeps the whole GPU busy:
//
//   parts of cmp and win → the row's selection blocks → parts of sel → sums, gate
//
// A single row of a short sequence has its blocks chosen by each thread block of sel's parts, which
// saves a kernel that all others would wait for; the choice is the same.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "kernels/exec.h"
#include "kernels/nsa/layer/layer_config.h"
#include "kernels/tensor.h"

namespace nsa {

struct AttendCachedArgs {
  NsaLayerConfig config;  // bf16; shape.batch is 1, shape.seq_len is R, the number of new rows
  // Most tokens of the sequence, the new rows included. The grids and the scratch memory are sized
  // for them, so that a captured launch serves every position up to there.
  int32_t tokens = 0;
  // int32 [1 + kBranches], read when the kernels run; no kernel may write it. at[0] is the position
  // of the first new row, at most tokens − R; at[1 + kWin] that of the first row of the window.
  ConstTensor at;
  ConstTensor doc_start;  // optional int32 [R]: where the document of each row begins

  ConstTensor q;  // [R, H, dk], rotated
  // With several branches:
  ConstTensor q_unrotated;  // [R, H, dk]
  GateParams gate;
  // Rotated keys, and values, of each branch: [rows, G, dk] and [rows, G, dv]. Of cmp they are the
  // compression blocks from block 0 on; of sel the tokens from position 0 on; of win those from
  // position at[1 + kWin] on, which is at most the first that row 0 sees. In a layer with sel and
  // without cmp k[kCmp] has the averages of l keys, and v[kCmp] is empty.
  std::array<ConstTensor, kBranches> k, v;

  Tensor scratch;    // uint8 [AttendCachedScratchBytes]
  Tensor blocks;     // int32 [R, G, n], scratch too, when sel is present
  Tensor o;          // [R, H, dv], overwritten
  Tensor keys_read;  // int64 [kBranches], added to; heads of a group count once
};

// How the keys of a sequence are divided.
struct CachedParts {
  static constexpr int32_t kKeys = 64;        // of a part
  int32_t blocks = 0;                         // compression blocks that are scored
  std::array<int32_t, kBranches> count = {};  // parts of each branch

  // For the last of `tokens` tokens, and so at most for those before it.
  static CachedParts Of(const NsaLayerConfig& config, int32_t tokens);
  int64_t total() const { return int64_t{count[kCmp]} + count[kSel] + count[kWin]; }
};

// Bytes of scratch for at most `rows` new rows of a sequence of at most `context` tokens.
int64_t AttendCachedScratchBytes(const NsaLayerConfig& config, int64_t rows, int32_t context);

}  // namespace nsa

namespace nsa::cuda {

// The caller has checked the shape (NsaShape::ValidateOnCuda) and owns tensors of these sizes.
// Unimplemented in a program that was built without CUDA.
absl::Status AttendCached(const Exec& exec, const AttendCachedArgs& args);

}  // namespace nsa::cuda
