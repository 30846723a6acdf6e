// Splitting and joining projections on CUDA with qk_norm; limited by memory bandwidth. The chunks
// of a head are in neighbouring lanes, which add up its squares, so `wide` is walked head by head,
// and the values, which are copied, after the heads.
#include "kernels/cuda/launch.h"
#include "kernels/nsa/layer/projection_columns.cuh"

namespace nsa::cuda {
namespace {

constexpr int kInFlight = 2;  // heads' chunks of 16 bytes in flight in a thread

__device__ __forceinline__ Place PlaceOf(const Columns& c, int64_t row, int token, int part,
                                         int column) {
  return {token, part, column, row * (c.begin[part + 1] - c.begin[part]) + column};
}

// Chunks of q and of the keys of a token.
__device__ __forceinline__ int HeadChunks(const Columns& c) {
  return c.groups * (c.heads_a_group + c.count / 2) << c.head_shift;
}

// Chunk i of the heads of a thread block's tokens, q first.
__device__ __forceinline__ Place HeadPlace(const Columns& c, int64_t row0, int per_token, int i) {
  const int token = i / per_token, q = c.begin[1];
  int part = 0, column = i - token * per_token;
  if (column >= q) {
    const int keys = c.groups << c.head_shift, branch = (column - q) / keys;
    part = 1 + 2 * branch;
    column -= q + branch * keys;
  }
  return PlaceOf(c, row0 + token, token, part, column);
}

// Chunk i of the values of a thread block's tokens.
__device__ __forceinline__ Place ValuePlace(const Columns& c, int64_t row0, int per_branch,
                                            int per_token, int i) {
  const int token = i / per_token, rest = i - token * per_token, branch = rest / per_branch;
  return PlaceOf(c, row0 + token, token, 2 + 2 * branch, rest - branch * per_branch);
}

// Where the chunk is in `wide`.
__device__ __forceinline__ int64_t InWide(const Columns& c, int64_t row0, const Place& at) {
  return (row0 + at.token) * c.begin[c.count] + c.begin[at.part] + at.column;
}

__global__ void __launch_bounds__(kThreads)
    SplitNormalizedKernel(Begin begin, const __grid_constant__ Columns c,
                          const __grid_constant__ RopeFrequencies f, const bf16* __restrict__ wide,
                          const __grid_constant__ SplitParts parts,
                          const __grid_constant__ SplitNorm norm) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t row0 = int64_t{1} * blockIdx.x * kTokens;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, c.rows - row0));
  const int width = 4 << c.head_shift, lanes = 1 << c.head_shift;
  if (c.at == nullptr) FillRopeAngles(f, row0, tokens, c.seq_len, c.first, width, angles);
  begin.WaitForPrevious();
  if (c.at != nullptr) FillRopeAngles(f, row0, tokens, c.seq_len, c.at[0], width, angles);
  __syncthreads();
  const int per_token = HeadChunks(c), chunks = tokens * per_token;
  for (int base = threadIdx.x; base < chunks; base += kInFlight * kThreads) {
    uint4 raw[kInFlight];
    Place place[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (base + u * kThreads >= chunks) break;
      place[u] = HeadPlace(c, row0, per_token, base + u * kThreads);
      raw[u] = LoadConst16(wide + 8 * InWide(c, row0, place[u]));
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (base + u * kThreads >= chunks) break;
      const Place& at = place[u];
      const Float8 x = AsFloats(raw[u]);
      const float r = HeadRstd(x, lanes);
      const int64_t to = 8 * at.InCache(c);
      if (at.part == 0) *reinterpret_cast<uint4*>(parts.to[0] + to) = raw[u];
      Store8((at.part == 0 ? parts.q_rotated : parts.to[at.part]) + to,
             Rotated(Scaled(x, r), at.AnglesIn(angles, c), 1.0f));
      if (norm.rstd[at.part] != nullptr && at.column % lanes == 0) {
        norm.rstd[at.part][at.in_part >> c.head_shift] = r;
      }
    }
  }
  const int per_branch = c.begin[3] - c.begin[2], values = c.count / 2 * per_branch;
  for (int i = threadIdx.x; i < tokens * values; i += kThreads) {
    const Place at = ValuePlace(c, row0, per_branch, values, i);
    *reinterpret_cast<uint4*>(parts.to[at.part] + 8 * at.InCache(c)) =
        LoadConst16(wide + 8 * InWide(c, row0, at));
  }
}

// The chunk of the gate's part of q's gradient.
__device__ __forceinline__ Float8 MeanOf(const Columns& c, const JoinParts& parts, int64_t row0,
                                         const Place& at) {
  if (at.part != 0 || parts.dq_mean == nullptr) return Float8{};
  const int head = at.column >> c.head_shift, chunk = at.column & ((1 << c.head_shift) - 1);
  const int64_t row = (row0 + at.token) * c.groups + head / c.heads_a_group;
  return AsFloats(LoadConst16(parts.dq_mean + 8 * ((row << c.head_shift) + chunk)));
}

__global__ void __launch_bounds__(kThreads)
    JoinNormalizedKernel(Begin begin, const __grid_constant__ Columns c,
                         const __grid_constant__ RopeFrequencies f,
                         const __grid_constant__ JoinParts parts,
                         const __grid_constant__ JoinNorm norm, bf16* wide) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t row0 = int64_t{1} * blockIdx.x * kTokens;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, c.rows - row0));
  const int lanes = 1 << c.head_shift;
  FillRopeAngles(f, row0, tokens, c.seq_len, c.first, 4 << c.head_shift, angles);
  __syncthreads();
  begin.WaitForPrevious();
  const float share = 1.0f / static_cast<float>(c.heads_a_group);
  const int per_token = HeadChunks(c), chunks = tokens * per_token;
  for (int base = threadIdx.x; base < chunks; base += kInFlight * kThreads) {
    uint4 gradient[kInFlight], rotated[kInFlight];
    float r[kInFlight];
    Place place[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (base + u * kThreads >= chunks) break;
      const Place at = place[u] = HeadPlace(c, row0, per_token, base + u * kThreads);
      gradient[u] = LoadConst16(parts.from[at.part] + 8 * at.in_part);
      rotated[u] = LoadConst16(norm.rotated[at.part] + 8 * at.in_part);
      r[u] = __ldg(norm.rstd[at.part] + (at.in_part >> c.head_shift));
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (base + u * kThreads >= chunks) break;
      const Place& at = place[u];
      Float8 dx = HeadGradient(AsFloats(gradient[u]), AsFloats(rotated[u]), r[u], lanes);
      dx = Rotated(dx, at.AnglesIn(angles, c), -1.0f);
      const Float8 mean = MeanOf(c, parts, row0, at);
#pragma unroll
      for (int e = 0; e < 8; ++e) dx.v[e] = fmaf(mean.v[e], share, dx.v[e]);
      Store8(wide + 8 * InWide(c, row0, at), dx);
    }
  }
  const int per_branch = c.begin[3] - c.begin[2], values = c.count / 2 * per_branch;
  for (int i = threadIdx.x; i < tokens * values; i += kThreads) {
    const Place at = ValuePlace(c, row0, per_branch, values, i);
    *reinterpret_cast<uint4*>(wide + 8 * InWide(c, row0, at)) =
        LoadConst16(parts.from[at.part] + 8 * at.in_part);
  }
}

}  // namespace

absl::Status SplitNormalized(const Exec& exec, const Columns& c, const RopeFrequencies& f,
                             const bf16* wide, const SplitParts& parts, const SplitNorm& norm) {
  return Launch(exec, "split_projections", SplitNormalizedKernel,
                {.grid = GridFor(c.rows, kTokens), .block = kThreads}, c, f, wide, parts, norm);
}

absl::Status JoinNormalized(const Exec& exec, const Columns& c, const RopeFrequencies& f,
                            const JoinParts& parts, const JoinNorm& norm, bf16* wide) {
  return Launch(exec, "join_projections", JoinNormalizedKernel,
                {.grid = GridFor(c.rows, kTokens), .block = kThreads}, c, f, parts, norm, wide);
}

}  // namespace nsa::cuda
