// Splitting and joining projections on CUDA with qk_norm; limited by memory bandwidth. The chunks
// of a head are in neighbouring lanes, kPieces in each (rope_angles.cuh), which add up its squares,
// so `wide` is walked head by head, and the values, which are copied, after the heads.
#include "kernels/cuda/column_sums.cuh"
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

// The weights of piece j of a head that a chunk belongs to.
__device__ __forceinline__ Float8 WeightsOf(const bf16* weight, const Columns& c, const Place& at,
                                            int after) {
  return AsFloats(LoadConst16(weight + 8 * (c.InHead(at.column) + after)));
}

__device__ __forceinline__ Float8 Times(Float8 x, const Float8& y) {
#pragma unroll
  for (int e = 0; e < 8; ++e) x.v[e] *= y.v[e];
  return x;
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
      const bf16* const weight = at.part == 0 ? norm.q_weight : norm.k_weight;
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const int64_t piece = to + 8 * j * lanes;
        Float8 y = Scaled(x[j], r);
        if (weight != nullptr) {
          bf16* const unit = norm.unit[at.part];
          if (unit != nullptr) Store8(unit + 8 * (at.in_part + j * lanes), y);
          y = Times(y, WeightsOf(weight, c, at, j * lanes));
        }
        if (at.part == 0 && parts.to[0] != nullptr) {
          *reinterpret_cast<uint4*>(parts.to[0] + piece) = raw[u][j];
        }
        Store8((at.part == 0 ? parts.q_rotated : parts.to[at.part]) + piece,
               Rotated(y, own + 4 * j * lanes, 1.0f));
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
    uint4 gradient[kInFlight][kPieces], forward[kInFlight][kPieces];
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
        forward[u][j] = LoadConst16(norm.heads[at.part] + piece);
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
        dx[j] = AsFloats(gradient[u][j]), y[j] = AsFloats(forward[u][j]);
      }
      const float2* const own = at.AnglesIn(angles, c);
      const bf16* const weight = at.part == 0 ? norm.q_weight : norm.k_weight;
      if (weight != nullptr) {  // the gradient of the heads before their weights
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          dx[j] = Times(Rotated(dx[j], own + 4 * j * lanes, -1.0f),
                        WeightsOf(weight, c, at, j * lanes));
        }
      }
      HeadGradient(dx, y, r[u], lanes);
      bf16* const to = wide + 8 * InWide(c, row0, at);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        Float8 x = weight != nullptr ? dx[j] : Rotated(dx[j], own + 4 * j * lanes, -1.0f);
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

constexpr int kBlocks = 128;  // ranges of heads

// A thread has eight columns of every slots-th head of its thread block's range, heads
// [count·block/kBlocks, …); the sums of the slots are added in order.
__global__ void __launch_bounds__(kThreads)
    HeadWeightGradientKernel(Begin begin, const __grid_constant__ HeadWeights h,
                             const __grid_constant__ RopeFrequencies f, float* partial) {
  __shared__ float sums[kThreads][8];
  begin.WaitForPrevious();
  const int chunks = h.d_k / 8, slots = kThreads / chunks;
  const int slot = static_cast<int>(threadIdx.x) / chunks, chunk = threadIdx.x % chunks;
  const int64_t first = h.count * blockIdx.x / kBlocks, end = h.count * (blockIdx.x + 1) / kBlocks;
  Float8 sum{};
  for (int64_t head = first + slot; slot < slots && head < end; head += slots) {
    const int t = static_cast<int>(head / h.heads % h.seq_len);
    float2 angles[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) angles[i] = RopeAngle(f, t, 4 * chunk + i);
    const int64_t at = head * h.d_k + 8 * chunk;
    const Float8 dz = Rotated(Load8(h.dy + at), angles, -1.0f), unit = Load8(h.unit + at);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.v[e] = fmaf(dz.v[e], unit.v[e], sum.v[e]);
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) sums[threadIdx.x][e] = sum.v[e];
  __syncthreads();
  if (slot != 0) return;
  for (int other = 1; other < slots; ++other) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.v[e] += sums[other * chunks + chunk][e];
  }
  float* const to = partial + int64_t{1} * blockIdx.x * h.d_k + 8 * chunk;
#pragma unroll
  for (int e = 0; e < 8; ++e) to[e] = sum.v[e];
}

}  // namespace

int64_t HeadWeightGradientWorkspaceBytes(int64_t d_k) { return 4 * kBlocks * d_k; }

absl::Status HeadWeightGradient(const Exec& exec, const HeadWeights& heads,
                                const RopeFrequencies& f) {
  NSA_ASSIGN_OR_RETURN(
      void* const workspace,
      WorkspaceOf(exec, HeadWeightGradientWorkspaceBytes(heads.d_k), "join_projections"));
  auto* const partial = static_cast<float*>(workspace);
  NSA_RETURN_IF_ERROR(Launch(exec, "join_projections", HeadWeightGradientKernel,
                             {.grid = kBlocks, .block = kThreads}, heads, f, partial));
  return Launch(exec, "join_projections", AddColumnSums<kBlocks>,
                {.grid = GridFor(heads.d_k, kWarp), .block = dim3(kWarp, kColumnSumParts)}, partial,
                heads.d_k, heads.dweight);
}

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
