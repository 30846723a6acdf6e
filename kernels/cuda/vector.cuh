// Loads and stores of eight bf16 at a time: 16 bytes, one memory transaction per thread.
#pragma once

#include "kernels/cuda/util.cuh"

namespace nsa::cuda {

struct Float8 {
  float v[8];
};

__device__ __forceinline__ Float8 AsFloats(const uint4& raw) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
  Float8 out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __bfloat1622float2(pairs[i]);
    out.v[2 * i] = pair.x;
    out.v[2 * i + 1] = pair.y;
  }
  return out;
}

__device__ __forceinline__ uint4 AsBf16(const Float8& x) {
  uint4 raw;
  raw.x = Pack(x.v[0], x.v[1]);
  raw.y = Pack(x.v[2], x.v[3]);
  raw.z = Pack(x.v[4], x.v[5]);
  raw.w = Pack(x.v[6], x.v[7]);
  return raw;
}

__device__ __forceinline__ Float8 Load8(const bf16* at) {
  return AsFloats(*reinterpret_cast<const uint4*>(at));
}

__device__ __forceinline__ void Store8(bf16* at, const Float8& x) {
  *reinterpret_cast<uint4*>(at) = AsBf16(x);
}

// Loads 16 bytes that nothing writes while the kernel runs: the load may be moved before stores.
__device__ __forceinline__ uint4 LoadConst16(const bf16* at) {
  return __ldg(reinterpret_cast<const uint4*>(at));
}

}  // namespace nsa::cuda
