// Rotary position embedding, per head, on interleaved pairs (RoFormer, arXiv 2104.09864).
//
//   y[2i]   = x[2i]·cos θ − x[2i+1]·sin θ
//   y[2i+1] = x[2i]·sin θ + x[2i+1]·cos θ      θ = (t / scale) · base^(−2i/dk),  i = 0 … dk/2−1
//
// Every head uses the same dk/2 frequencies, so q·k of two rotated rows depends only on their
// distance. θ is computed in fp64; its sine and cosine are rounded once. The gradient of a rotation
// is the inverse rotation: call with `inverse`.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct RopeArgs {
  int32_t batch = 0;     // B
  int32_t seq_len = 0;   // S; positions are first … first + S − 1 in each row of the batch
  int32_t heads = 0;     // H or G
  int32_t head_dim = 0;  // dk, even
  float base = 10000;    // > 1
  float scale = 1;       // > 0, divides positions
  bool inverse = false;  // rotate back
  ConstTensor x;         // [B, S, heads, dk]
  Tensor y;              // [B, S, heads, dk], overwritten; may be x itself
  int32_t first = 0;     // position of the first token
};

// Errors: InvalidArgument when a size, type or field is outside its limits. Each output element is
// written by one thread, so the bits do not depend on the number of threads.
absl::Status Rope(const Exec& exec, const RopeArgs& args);

}  // namespace nsa

// The same on a GPU (rope.cu); the function above has checked the arguments.
namespace nsa::cuda {

absl::Status Rope(const Exec& exec, const RopeArgs& args);

}  // namespace nsa::cuda
