// Compression φ: each block of l tokens becomes one compressed key (or value), with stride d.
//
//   y[b,i,g,:] = φ(x[b, i·d … i·d+l−1, g, :])            i = 0 … S_cmp−1        (NSA paper, eq. 7)
//
//   avg   φ(x) = (1/l) Σ_r x_r
//   mlp   φ(x) = W2 · silu(W1 · u + b1) + b2
//         u = (x_0 + pe_0 ‖ x_1 + pe_1 ‖ … ‖ x_{l−1} + pe_{l−1})
//
// The MLP is the paper's learnable φ with an intra-block position embedding pe: l·width → m →
// width with m = width hidden units. Keys and values have separate parameters, each shared by all G
// groups. Keys are rotated (RoPE) before they are compressed.
//
// One call compresses one tensor: keys with width = dk, values with width = dv.
// Gradients of x are overwritten, gradients of parameters are added to. Repeatable: every sum has a
// fixed order that does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

enum class Phi : uint8_t { kAvg, kMlp };

// m, the hidden units of φ mlp.
constexpr int64_t PhiHidden(int64_t width) { return width; }

// Sizes of the five parameters of φ mlp, for either keys or values. Initialise pe, w1 and b1 from
// U(±1/√(l·width)), w2 and b2 from U(±1/√m).
struct PhiSizes {
  int64_t pe, w1, b1, w2, b2;
  int64_t total() const { return pe + w1 + b1 + w2 + b2; }
};
constexpr PhiSizes PhiSizesOf(int64_t l, int64_t width) {
  const int64_t m = PhiHidden(width);
  return {l * width, m * l * width, m, width * m, width};
}

// Parameters of φ mlp; all empty for avg.
struct PhiParams {
  ConstTensor pe;  // [l, width]
  ConstTensor w1;  // [m, l, width]: (out, in) with in = r·width + c
  ConstTensor b1;  // [m]
  ConstTensor w2;  // [width, m]
  ConstTensor b2;  // [width]
};

// Gradients of PhiParams, fp32, added to.
struct PhiGrads {
  Tensor pe, w1, b1, w2, b2;
};

struct CompressArgs {
  NsaShape shape;
  int32_t width = 0;  // dk or dv
  Phi phi = Phi::kAvg;
  ConstTensor x;     // [B, S, G, width]
  PhiParams params;  // mlp only
  Tensor hidden;     // mlp only: [B, S_cmp, G, m], W1·u + b1, overwritten, for backward
  Tensor y;          // [B, S_cmp, G, width], overwritten; empty when S < l
  // Optional, on a GPU only: int32 [1 + kBranches], read when the kernel runs, so that a captured
  // launch serves every position. B = 1 and S = l: the only block is that whose last token is at
  // position at[0] of a sequence. x and y then name the first rows of caches: x token
  // at[1 + cache], y block 0. No kernel may write it.
  ConstTensor at;
  Branch cache = kCmp;  // whose keys or values x has
};

struct CompressBackwardArgs {
  NsaShape shape;
  int32_t width = 0;
  Phi phi = Phi::kAvg;
  ConstTensor x;       // mlp only: the same as in forward
  PhiParams params;    // mlp only
  ConstTensor hidden;  // mlp only: output of forward
  ConstTensor dy;      // [B, S_cmp, G, width]
  Tensor d_hidden;     // mlp only: [B, S_cmp, G, m], workspace
  Tensor dx;           // [B, S, G, width], overwritten
  PhiGrads grads;      // mlp only, added to
  // CUDA only: as BranchBackwardArgs::key_stride and dk_angles (kernels/nsa/branch/branch_args.h).
  int64_t dx_stride = 0;
  ConstTensor dx_angles;
};

// Errors: InvalidArgument when the shape is outside its limits or a tensor differs from its shape.
absl::Status Compress(const Exec& exec, const CompressArgs& args);
absl::Status CompressBackward(const Exec& exec, const CompressBackwardArgs& args);

// Both tensors of a layer, which have the same shape and φ. On a GPU they are computed side by side
// where dk = dv. Errors: those above, and InvalidArgument when shape or φ differ.
absl::Status CompressKeysAndValues(const Exec& exec, const CompressArgs& keys,
                                   const CompressArgs& values);
absl::Status CompressKeysAndValuesBackward(const Exec& exec, const CompressBackwardArgs& keys,
                                           const CompressBackwardArgs& values);

}  // namespace nsa

// The same on a GPU (compress.cu); the functions above have checked the arguments. Backward of φ
// mlp needs a PhiScratch of workspace for each tensor (common/nsa/attention_scratch.h).
namespace nsa::cuda {

absl::Status Compress(const Exec& exec, const CompressArgs& args);
absl::Status CompressBackward(const Exec& exec, const CompressBackwardArgs& args);
absl::Status CompressKeysAndValues(const Exec& exec, const CompressArgs& keys,
                                   const CompressArgs& values);
absl::Status CompressKeysAndValuesBackward(const Exec& exec, const CompressBackwardArgs& keys,
                                           const CompressBackwardArgs& values);

}  // namespace nsa::cuda
