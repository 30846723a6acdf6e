// The product of one row of a matrix and a vector, by one warp or several: each lane reads 16 bytes
// at a time. The factor of RMSNorm is common to the whole sum, so x is read once and the sum scaled
// at the end.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"

namespace nsa::cuda {

constexpr int kRowWarps = 4;    // of a thread block
constexpr int kLongRow = 2048;  // a lane of a single warp would need several rounds of loads

// Brings the row to the L2 cache while the kernel in front still runs, on one warp. It reads
// nothing: what the row holds is decided by the loads after the wait.
__device__ __forceinline__ void PrefetchRow(const bf16* w, int in) {
  constexpr int kLine = 64;  // elements in 128 bytes
  for (int c = static_cast<int>(threadIdx.x % kWarp) * kLine; c < in; c += kWarp * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(w + c)));
  }
}

// w · x, with kNorm w · RMSNorm(x), on every lane of the kSplit neighbouring warps that have the
// row. All threads of the thread block must call it.
template <bool kNorm, int kSplit>
__device__ __forceinline__ float RowDot(const bf16* w, const bf16* x, const bf16* norm, int in,
                                        float eps) {
  constexpr int kBatch = 4;  // chunks of 16 bytes of W in flight in a lane
  constexpr int kStep = kSplit * kWarp * 8;
  static_assert(kRowWarps % kSplit == 0);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  float dot = 0, squares = 0;
  for (int base = (warp % kSplit * kWarp + lane) * 8; base < in; base += kBatch * kStep) {
    uint4 raw[kBatch], raw_x[kBatch], raw_norm[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int c = min(base + k * kStep, in - 8);
      raw[k] = LoadConst16(w + c);
      raw_x[k] = *reinterpret_cast<const uint4*>(x + c);
      if (kNorm) raw_norm[k] = *reinterpret_cast<const uint4*>(norm + c);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (base + k * kStep >= in) break;
      const Float8 weight = AsFloats(raw[k]);
      Float8 value = AsFloats(raw_x[k]);
      if (kNorm) {
        const Float8 scale = AsFloats(raw_norm[k]);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          squares = fmaf(value.v[e], value.v[e], squares);
          value.v[e] *= scale.v[e];
        }
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) dot = fmaf(weight.v[e], value.v[e], dot);
    }
  }
  dot = WarpSum(dot);
  if (kNorm) squares = WarpSum(squares);
  if (kSplit > 1) {
    __shared__ float dots[kRowWarps], squared[kRowWarps];
    if (lane == 0) dots[warp] = dot, squared[warp] = squares;
    __syncthreads();
    dot = squares = 0;
#pragma unroll
    for (int other = 0; other < kSplit; ++other) {
      dot += dots[warp / kSplit * kSplit + other];
      squares += squared[warp / kSplit * kSplit + other];
    }
  }
  return kNorm ? dot * rsqrtf(squares / static_cast<float>(in) + eps) : dot;
}

}  // namespace nsa::cuda
