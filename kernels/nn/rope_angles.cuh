// Angles of RoPE on CUDA. Computing position times frequency in fp64 is slow on a GPU, and in fp32
// the relative error of 2^-24 is 4e-3 rad at t = 65,536. The product is therefore computed as a sum
// of two fp32 numbers, in revolutions, so that the range reduction is a subtraction (error under
// 1e-7 rad for t < 2^17).
#pragma once

#include "kernels/cuda/vector.cuh"
#include "kernels/nn/rope_frequency.h"

namespace nsa::cuda {

constexpr int kMaxRopePairs = 96;

// Revolutions per position of each pair, as two floats whose sum is the fp64 value.
struct RopeFrequencies {
  float high[kMaxRopePairs];
  float low[kMaxRopePairs];
};

inline RopeFrequencies FrequenciesOf(int head_dim, float base, float scale,
                                     const RopeScaling& scaling) {
  RopeFrequencies f{};
  for (int i = 0; i < head_dim / 2; ++i) {
    const double turns = RopeFrequency(base, i, head_dim, scaling) /
                         (static_cast<double>(scale) * 2.0 * 3.14159265358979323846);
    f.high[i] = static_cast<float>(turns);
    f.low[i] = static_cast<float>(turns - static_cast<double>(f.high[i]));
  }
  return f;
}

// Cosine and sine of a pair at position t.
__device__ __forceinline__ float2 RopeAngle(const RopeFrequencies& f, int t, int pair) {
  const float position = static_cast<float>(t);
  // t · f.high is exact as product plus rounding error; only the fraction of a revolution matters.
  const float high = position * f.high[pair];
  const float rest = fmaf(position, f.high[pair], -high) + position * f.low[pair];
  const float turn = (high - rintf(high)) + rest;
  float sine, cosine;
  sincospif(2.0f * turn, &sine, &cosine);
  return {cosine, sine};
}

// Rotates four pairs by their angles (direction 1), or back (direction −1).
__device__ __forceinline__ Float8 Rotated(const Float8& x, const float2* angles, float direction) {
  Float8 y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float cosine = angles[i].x, sine = angles[i].y * direction;
    y.v[2 * i] = x.v[2 * i] * cosine - x.v[2 * i + 1] * sine;
    y.v[2 * i + 1] = x.v[2 * i] * sine + x.v[2 * i + 1] * cosine;
  }
  return y;
}

// One pair rotated back by its angle {cosine, sine}.
__device__ __forceinline__ float2 RotatedBack(float2 x, float2 angle) {
  return {x.x * angle.x + x.y * angle.y, x.y * angle.x - x.x * angle.y};
}

// Normalized heads (RopeArgs::normalize). `lanes` neighbouring lanes, a power of two, share a head:
// each has kPieces chunks of eight elements, which are `lanes` chunks apart. All of them must call
// these functions. A head of 192 has three chunks for each of eight lanes, others one for each.
constexpr int PiecesOfHead(int head_dim) { return head_dim > 128 ? 3 : 1; }

__device__ __forceinline__ float SumOverHead(float x, int lanes) {
  const unsigned int first = threadIdx.x & 31u & ~static_cast<unsigned int>(lanes - 1);
  const unsigned int mask = (0xffffffffu >> (32 - lanes)) << first;
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(mask, x, offset);
  return x;
}

// r of the head.
template <int kPieces>
__device__ __forceinline__ float HeadRstd(const Float8 (&x)[kPieces], int lanes, float eps) {
  float squares = 0;
#pragma unroll
  for (const Float8& piece : x) {
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(piece.v[e], piece.v[e], squares);
  }
  const float width = static_cast<float>(8 * kPieces * lanes);
  return rsqrtf(SumOverHead(squares, lanes) / width + eps);
}

__device__ __forceinline__ Float8 Scaled(Float8 x, float factor) {
#pragma unroll
  for (float& e : x.v) e *= factor;
  return x;
}

// dy ← r · (dy − y · mean(dy · y)), which is then to be rotated back.
template <int kPieces>
__device__ __forceinline__ void HeadGradient(Float8 (&dy)[kPieces], const Float8 (&y)[kPieces],
                                             float r, int lanes) {
  float dot = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int e = 0; e < 8; ++e) dot = fmaf(dy[j].v[e], y[j].v[e], dot);
  }
  const float along = SumOverHead(dot, lanes) / static_cast<float>(8 * kPieces * lanes);
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int e = 0; e < 8; ++e) dy[j].v[e] = r * fmaf(-along, y[j].v[e], dy[j].v[e]);
  }
}

// Writes the angles of `rows` positions from row0 on to shared memory, [rows][head_dim/2]; row r is
// at position first + r mod seq_len. All threads of the block must call it; the caller
// synchronises.
__device__ __forceinline__ void FillRopeAngles(const RopeFrequencies& f, int64_t row0, int rows,
                                               int seq_len, int first, int pairs, float2* angles) {
  const int begin = static_cast<int>(row0 % seq_len);
  for (int i = threadIdx.x; i < rows * pairs; i += blockDim.x) {
    angles[i] = RopeAngle(f, first + (begin + i / pairs) % seq_len, i % pairs);
  }
}

}  // namespace nsa::cuda
