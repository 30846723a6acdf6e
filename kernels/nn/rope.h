// Rotary position embedding, per head, on interleaved pairs (RoFormer, arXiv 2104.09864).
//
//   y[2i]   = x[2i]·cos θ − x[2i+1]·sin θ
//   y[2i+1] = x[2i]·sin θ + x[2i+1]·cos θ      θ = (t / scale) · f_i,  i = 0 … dk/2−1
//
// f_i = base^(−2i/dk), or what `scaling` makes of it (rope_frequency.h).
//
// With `normalize` (QK-norm, arXiv 2010.04245, without parameters) every head is first divided by
// its root mean square:
//
//   y = R(x · r),   r = 1/√(mean(x²) + eps)             R: the rotation above
//   dx = r · R⁻¹(dy − y · mean(dy · y))                 its gradient, with `inverse`
//
// With `weight` the normalized columns are also multiplied, as in Qwen3:
//
//   y = R(u ⊙ weight),   u = x · r
//   dz = R⁻¹(dy),   dweight = Σ dz ⊙ u,   du = dz ⊙ weight,   dx = r · (du − u · mean(du · u))
//
// Every head uses the same dk/2 frequencies, so q·k of two rotated rows depends only on their
// distance. θ is computed in fp64; its sine and cosine are rounded once. The gradient of a rotation
// is the inverse rotation: call with `inverse`.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nn/rope_frequency.h"
#include "kernels/tensor.h"

namespace nsa {

struct RopeArgs {
  int32_t batch = 0;     // B
  int32_t seq_len = 0;   // S; positions are first … first + S − 1 in each row of the batch
  int32_t heads = 0;     // H or G
  int32_t head_dim = 0;  // dk, even
  float base = 10000;    // > 1
  float scale = 1;       // > 0, divides positions; may be kNoRotation
  RopeScaling scaling;   // of the frequencies
  bool inverse = false;  // rotate back
  ConstTensor x;         // [B, S, heads, dk]
  Tensor y;              // [B, S, heads, dk], overwritten; may be x itself
  int32_t first = 0;     // position of the first token

  float eps = 1e-6f;       // with `normalize`
  bool normalize = false;  // on a GPU head_dim must then be 8, 16, 32, 64, 128 or 192
  Tensor rstd;             // optional fp32 [B, S, heads]: r, for backward; not with `inverse`
  // With `normalize` and `inverse` x is dy and y is dx; these are forward's results.
  ConstTensor y_forward;     // [B, S, heads, dk]
  ConstTensor rstd_forward;  // fp32 [B, S, heads]

  // On the CPU only; on a GPU SplitProjections() and JoinProjections() do this.
  ConstTensor weight;        // fp32 [dk], optional, with `normalize`
  Tensor unit;               // with `weight`, optional, [B, S, heads, dk]: u, for backward
  ConstTensor unit_forward;  // with `weight` and `inverse`, in place of y_forward
  Tensor dweight;            // with `weight` and `inverse`: fp32 [dk], added to
};

// Errors: InvalidArgument when a size, type or field is outside its limits. Each output element is
// written by one thread, so the bits do not depend on the number of threads.
absl::Status Rope(const Exec& exec, const RopeArgs& args);

}  // namespace nsa

// The same on a GPU (rope.cu); the function above has checked the arguments.
namespace nsa::cuda {

absl::Status Rope(const Exec& exec, const RopeArgs& args);

// angles[t] ← cosine and sine of θ for each pair, for kernels that rotate what they write. fp32
// [S, dk/2, 2], the same numbers that Rope() rotates by; sizes are not checked.
absl::Status RopeAngles(const Exec& exec, int32_t seq_len, int32_t head_dim, float base,
                        float scale, const RopeScaling& scaling, const Tensor& angles);

}  // namespace nsa::cuda
