// Splitting and joining projections on CUDA with qk_norm; limited by memory bandwidth. The chunks
// of a head are in neighbouring lanes, kPieces in each (rope_angles.cuh), which add up its squares,
// so `wide` is walked head by head, and the values, which are copied, after the heads.
#include "kernels/cuda/launch.h"
#include "kernels/nsa/layer/projection_columns.cuh"

namespace nsa::cuda {
namespace {

constexpr int kInFlight = 2;  // heads whose chunks a thread has in flight

__device__ __forceinline__ Place PlaceOf(const Columns& c, int64_t row, int token, int part,
                                         int column) {
  return {token, part, column, row * (c.begin[part + 1] - c.begin[part]) + column};
}

// Lanes of q and of the keys of a token, over the iterations of a thread block.
__device__ __forceinline__ int HeadLanes(const Columns& c, int lanes) {
  return c.groups * (c.heads_a_group + c.count / 2) * lanes;
}

// The first chunk of lane i of the heads of a thread block's tokens, q first. Its other pieces
// follow `lanes` chunks apart.
template <int kPieces>
__device__ __forceinline__ Place HeadPlace(const Columns& c, int64_t row0, int lanes, int per_token,
                                           int i) {
  const int token = i / per_token, q = c.begin[1] / kPieces;
  int part = 0, column = i - token * per_token;
  if (column >= q) {
    const int keys = c.groups * lanes, branch = (column - q) / keys;
    part = 1 + 2 * branch;
    column -= q + branch * keys;
  }
  if (kPieces > 1) column += column / lanes * (kPieces - 1) * lanes;
  return PlaceOf(c, row0 + token, token, part, column);
}

// The head among all of its part's tensor.
__device__ __forceinline__ int64_t HeadRow(const Columns& c, int64_t row0, const Place& at) {
  const int heads = c.HeadOf(c.begin[at.part + 1] - c.begin[at.part]);
  return (row0 + at.token) * heads + c.HeadOf(at.column);
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

template <int kPieces>
__global__ void __launch_bounds__(kThreads)
    SplitNormalizedKernel(Begin begin, const __grid_constant__ Columns c,
                          const __grid_constant__ RopeFrequencies f, const bf16* __restrict__ wide,
                          const __grid_constant__ SplitParts parts,
                          const __grid_constant__ SplitNorm norm) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t row0 = int64_t{1} * blockIdx.x * kTokens;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, c.rows - row0));
  const int width = 4 * c.head_chunks, lanes = c.head_chunks / kPieces;
  if (c.at == nullptr) FillRopeAngles(f, row0, tokens, c.seq_len, c.first, width, angles);
  begin.WaitForPrevious();
  if (c.at != nullptr) FillRopeAngles(f, row0, tokens, c.seq_len, c.at[0], width, angles);
  __syncthreads();
  const int per_token = HeadLanes(c, lanes), count = tokens * per_token;
  for (int base = threadIdx.x; base < count; base += kInFlight * kThreads) {
    uint4 raw[kInFlight][kPieces];
    Place place[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (base + u * kThreads >= count) break;
      place[u] = HeadPlace<kPieces>(c, row0, lanes, per_token, base + u * kThreads);
      const bf16* const from = wide + 8 * InWide(c, row0, place[u]);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) raw[u][j] = LoadConst16(from + 8 * j * lanes);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (base + u * kThreads >= count) break;
      const Place& at = place[u];
      Float8 x[kPieces];
#pragma unroll
      for (int j = 0; j < kPieces; ++j) x[j] = AsFloats(raw[u][j]);
      const float r = HeadRstd(x, lanes, norm.eps);
      const int64_t to = 8 * at.InCache(c);
      const float2* const own = at.AnglesIn(angles, c);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const int64_t piece = to + 8 * j * lanes;
        if (at.part == 0 && parts.to[0] != nullptr) {
          *reinterpret_cast<uint4*>(parts.to[0] + piece) = raw[u][j];
        }
        Store8((at.part == 0 ? parts.q_rotated : parts.to[at.part]) + piece,
               Rotated(Scaled(x[j], r), own + 4 * j * lanes, 1.0f));
      }
      if (norm.rstd[at.part] != nullptr && c.InHead(at.column) == 0) {
        norm.rstd[at.part][HeadRow(c, row0, at)] = r;
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

// The piece `after` chunks behind the place of the gate's part of q's gradient.
__device__ __forceinline__ Float8 MeanOf(const Columns& c, const JoinParts& parts, int64_t row0,
                                         const Place& at, int after) {
  if (at.part != 0 || parts.dq_mean == nullptr) return Float8{};
  const int head = c.HeadOf(at.column), chunk = at.column - head * c.head_chunks + after;
  const int64_t row = (row0 + at.token) * c.groups + head / c.heads_a_group;
  return AsFloats(LoadConst16(parts.dq_mean + 8 * (row * c.head_chunks + chunk)));
}

template <int kPieces>
__global__ void __launch_bounds__(kThreads)
    JoinNormalizedKernel(Begin begin, const __grid_constant__ Columns c,
                         const __grid_constant__ RopeFrequencies f,
                         const __grid_constant__ JoinParts parts,
                         const __grid_constant__ JoinNorm norm, bf16* wide) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t row0 = int64_t{1} * blockIdx.x * kTokens;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, c.rows - row0));
  const int lanes = c.head_chunks / kPieces;
  FillRopeAngles(f, row0, tokens, c.seq_len, c.first, 4 * c.head_chunks, angles);
  __syncthreads();
  begin.WaitForPrevious();
  const float share = 1.0f / static_cast<float>(c.heads_a_group);
  const int per_token = HeadLanes(c, lanes), count = tokens * per_token;
  for (int base = threadIdx.x; base < count; base += kInFlight * kThreads) {
    uint4 gradient[kInFlight][kPieces], rotated[kInFlight][kPieces];
    float r[kInFlight];
    Place place[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (base + u * kThreads >= count) break;
      const Place at = place[u] =
          HeadPlace<kPieces>(c, row0, lanes, per_token, base + u * kThreads);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const int64_t piece = 8 * (at.in_part + j * lanes);
        gradient[u][j] = LoadConst16(parts.from[at.part] + piece);
        rotated[u][j] = LoadConst16(norm.rotated[at.part] + piece);
      }
      r[u] = __ldg(norm.rstd[at.part] + HeadRow(c, row0, at));
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (base + u * kThreads >= count) break;
      const Place& at = place[u];
      Float8 dx[kPieces], y[kPieces];
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        dx[j] = AsFloats(gradient[u][j]), y[j] = AsFloats(rotated[u][j]);
      }
      HeadGradient(dx, y, r[u], lanes);
      const float2* const own = at.AnglesIn(angles, c);
      bf16* const to = wide + 8 * InWide(c, row0, at);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        Float8 x = Rotated(dx[j], own + 4 * j * lanes, -1.0f);
        const Float8 mean = MeanOf(c, parts, row0, at, j * lanes);
#pragma unroll
        for (int e = 0; e < 8; ++e) x.v[e] = fmaf(mean.v[e], share, x.v[e]);
        Store8(to + 8 * j * lanes, x);
      }
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
  return Launch(
      exec, "split_projections",
      PiecesOfHead(8 * c.head_chunks) == 1 ? SplitNormalizedKernel<1> : SplitNormalizedKernel<3>,
      {.grid = GridFor(c.rows, kTokens), .block = kThreads}, c, f, wide, parts, norm);
}

absl::Status JoinNormalized(const Exec& exec, const Columns& c, const RopeFrequencies& f,
                            const JoinParts& parts, const JoinNorm& norm, bf16* wide) {
  return Launch(
      exec, "join_projections",
      PiecesOfHead(8 * c.head_chunks) == 1 ? JoinNormalizedKernel<1> : JoinNormalizedKernel<3>,
      {.grid = GridFor(c.rows, kTokens), .block = kThreads}, c, f, parts, norm, wide);
}

}  // namespace nsa::cuda
