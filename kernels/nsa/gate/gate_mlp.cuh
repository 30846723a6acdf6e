// The gate's MLP, dk → dk/2 → n_b, for 16 rows per warp on the matrix unit. A row is a (token,
// group) pair.
//
// Weights are bf16. The fp32 operand is split into two bf16 (upper and lower bits), which keeps it
// to a relative error of 2^-17. Layout of a result: a lane has rows lane/4 and lane/4 + 8, hidden
// units 8n + 2·(lane%4) and 8n + 2·(lane%4) + 1.
#pragma once

#include <type_traits>

#include "kernels/cuda/util.cuh"

namespace nsa::cuda {

constexpr int kGateWarps = 8;                           // at most
constexpr int kGateRows = 16;                           // per warp
constexpr int kGateBlockRows = kGateWarps * kGateRows;  // at most

struct GateProblem {
  int64_t rows;  // B·S·G
  int groups, h, dv;
  bool sigmoid;
  const bf16* q;     // forward only
  int64_t q_stride;  // elements from a token of q to the next
  float* q_mean;     // [rows, dk]: written in forward unless null, read in backward
  const bf16 *fc1_w, *fc1_b, *fc2_w, *fc2_b;
  const bf16* branch[kBranches];  // the present ones, in order
  int branch_id[kBranches];       // their Branch
};

// Two fp32, each split into two bf16: the rounded value in `high`, the remainder in `low`. Each
// register holds the halves of both.
struct Halves {
  uint32_t high, low;
};
__device__ __forceinline__ Halves Split(float x, float y) {
  const __nv_bfloat162 high = __floats2bfloat162_rn(x, y);
  const float2 taken = __bfloat1622float2(high);
  return {*reinterpret_cast<const uint32_t*>(&high), Pack(x - taken.x, y - taken.y)};
}

// Parameters in shared memory. The row strides put the lanes of a fragment in different banks.
template <int kDk, int kN>
struct GateParameters {
  static constexpr int kHidden = kDk / 2;
  static constexpr int kInStride = kDk + 4, kOutStride = kHidden + 2;

  alignas(16) bf16 w1[kHidden * kInStride];  // [unit][column]
  float b1[kHidden];
  float w2[kN * kHidden];
  float b2[kN];

  // With kBackward also sets w1_out, [column][unit] with kOutStride units in a row.
  template <bool kBackward>
  __device__ __forceinline__ void Load(const GateProblem& p, bf16* w1_out = nullptr) {
    for (int i = threadIdx.x; i < kHidden * kDk / 8; i += blockDim.x) {
      const int unit = i / (kDk / 8), column = i % (kDk / 8) * 8;
      const uint4 raw = reinterpret_cast<const uint4*>(p.fc1_w)[i];
      auto* to = reinterpret_cast<uint2*>(&w1[unit * kInStride + column]);
      to[0] = {raw.x, raw.y}, to[1] = {raw.z, raw.w};
      if constexpr (kBackward) {
        const auto* values = reinterpret_cast<const bf16*>(&raw);
#pragma unroll
        for (int c = 0; c < 8; ++c) w1_out[(column + c) * kOutStride + unit] = values[c];
      }
    }
    for (int i = threadIdx.x; i < kHidden; i += blockDim.x) b1[i] = __bfloat162float(p.fc1_b[i]);
    for (int i = threadIdx.x; i < kN * kHidden; i += blockDim.x) {
      w2[i] = __bfloat162float(p.fc2_w[i]);
    }
    if (threadIdx.x < kN) b2[threadIdx.x] = __bfloat162float(p.fc2_b[threadIdx.x]);
    __syncthreads();
  }
};

// Means of q over the heads: of each of its two rows, a lane has the kDk/4 columns from
// (lane%4)·kDk/4 on. Rows after the last are 0.
template <int kDk>
using GateMeans = float[2][kDk / 4];

template <int kDk>
__device__ __forceinline__ void ComputeMeans(const GateProblem& p, int64_t row0, int lane,
                                             GateMeans<kDk>& x) {
  constexpr int kOwn = kDk / 4;
  using Chunk = std::conditional_t<kOwn >= 8, uint4, uint2>;
  constexpr int kPairs = sizeof(Chunk) / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = row0 + lane / 4 + 8 * i;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) x[i][c] = 0;
    if (row >= p.rows) continue;
    const unsigned int token = static_cast<unsigned int>(row) / p.groups;  // B·S·G < 2³¹
    const int group = static_cast<int>(row) - static_cast<int>(token) * p.groups;
    const bf16* q = p.q + token * p.q_stride + group * p.h * kDk + (lane & 3) * kOwn;
#pragma unroll 4  // so many heads under way
    for (int a = 0; a < p.h; ++a) {
#pragma unroll
      for (int chunk = 0; chunk < kOwn / (2 * kPairs); ++chunk) {
        const Chunk raw = reinterpret_cast<const Chunk*>(q + a * kDk)[chunk];
        const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const float2 v = __bfloat1622float2(pairs[j]);
          x[i][(chunk * kPairs + j) * 2] += v.x;
          x[i][(chunk * kPairs + j) * 2 + 1] += v.y;
        }
      }
    }
    const float share = 1.0f / p.h;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) x[i][c] *= share;
  }
}

// The four means from column c of those that a lane has in row i.
template <int kDk>
__device__ __forceinline__ float4* MeansAt(const GateProblem& p, int64_t row, int lane, int c) {
  return reinterpret_cast<float4*>(p.q_mean + row * kDk + (lane & 3) * (kDk / 4) + c);
}

template <int kDk>
__device__ __forceinline__ void StoreMeans(const GateProblem& p, int64_t row0, int lane,
                                           const GateMeans<kDk>& x) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = row0 + lane / 4 + 8 * i;
    if (row >= p.rows) continue;
#pragma unroll
    for (int c = 0; c < kDk / 4; c += 4) {
      *MeansAt<kDk>(p, row, lane, c) = {x[i][c], x[i][c + 1], x[i][c + 2], x[i][c + 3]};
    }
  }
}

template <int kDk>
__device__ __forceinline__ void LoadMeans(const GateProblem& p, int64_t row0, int lane,
                                          GateMeans<kDk>& x) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = row0 + lane / 4 + 8 * i;
#pragma unroll
    for (int c = 0; c < kDk / 4; c += 4) {
      const float4 v = row < p.rows ? *MeansAt<kDk>(p, row, lane, c) : float4{0, 0, 0, 0};
      x[i][c] = v.x, x[i][c + 1] = v.y, x[i][c + 2] = v.z, x[i][c + 3] = v.w;
    }
  }
}

template <int kDk>
using GateUnits = float[kDk / 16][4];

// before = W1·x + b1. Step s multiplies columns 4s … 4s + 3 of those that each lane has: the
// columns of a sum may be taken in any order.
template <int kDk, int kN>
__device__ __forceinline__ void HiddenUnits(const GateParameters<kDk, kN>& m,
                                            const GateMeans<kDk>& x, int lane,
                                            GateUnits<kDk>& before) {
  using Parameters = GateParameters<kDk, kN>;
#pragma unroll
  for (int n = 0; n < kDk / 16; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) before[n][e] = m.b1[n * 8 + 2 * (lane & 3) + (e & 1)];
  }
#pragma unroll
  for (int s = 0; s < kDk / 16; ++s) {
    const Halves a[4] = {Split(x[0][4 * s], x[0][4 * s + 1]), Split(x[1][4 * s], x[1][4 * s + 1]),
                         Split(x[0][4 * s + 2], x[0][4 * s + 3]),
                         Split(x[1][4 * s + 2], x[1][4 * s + 3])};
    const uint32_t high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    const uint32_t low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
#pragma unroll
    for (int n = 0; n < kDk / 16; ++n) {
      const auto w = *reinterpret_cast<const uint2*>(
          &m.w1[(n * 8 + lane / 4) * Parameters::kInStride + (lane & 3) * (kDk / 4) + 4 * s]);
      Mma(before[n], high, w.x, w.y);
      Mma(before[n], low, w.x, w.y);
    }
  }
}

__device__ __forceinline__ float SigmoidOf(float x) { return 1.0f / (1.0f + __expf(-x)); }

// Gates of a lane's two rows, the same in every lane of a quad.
template <int kN>
using RowGates = float[2][kN];

template <int kDk, int kN>
__device__ __forceinline__ void EvaluateGates(const GateParameters<kDk, kN>& m, bool sigmoid,
                                              const GateUnits<kDk>& before, int lane,
                                              RowGates<kN>& gate) {
  RowGates<kN> logit = {};
#pragma unroll
  for (int n = 0; n < kDk / 16; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float act = before[n][e] * SigmoidOf(before[n][e]);
      const int unit = n * 8 + 2 * (lane & 3) + (e & 1);
#pragma unroll
      for (int c = 0; c < kN; ++c) {
        logit[e >> 1][c] = fmaf(m.w2[c * (kDk / 2) + unit], act, logit[e >> 1][c]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int c = 0; c < kN; ++c) logit[i][c] = QuadSum(logit[i][c]) + m.b2[c];
    if (sigmoid) {
#pragma unroll
      for (int c = 0; c < kN; ++c) gate[i][c] = 1.0f / (1.0f + expf(-logit[i][c]));
      continue;
    }
    float top = logit[i][0], sum = 0;
#pragma unroll
    for (int c = 1; c < kN; ++c) top = fmaxf(top, logit[i][c]);
#pragma unroll
    for (int c = 0; c < kN; ++c) sum += gate[i][c] = expf(logit[i][c] - top);
#pragma unroll
    for (int c = 0; c < kN; ++c) gate[i][c] /= sum;
  }
}

}  // namespace nsa::cuda
