// Attention over cached keys. Every thread of a thread block has one key of its part: it reads the
// key once and multiplies it by the queries of all heads of the group. The values are then read
// with 16 bytes per thread. The scores of compressed keys are kept for the selection of blocks.
#include <cmath>

#include "kernels/nsa/decode/problem.cuh"

namespace nsa::cuda {
namespace {

constexpr int kThreads = kPartKeys;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostWidth = 128;

template <int kHeads>
struct PartShared {
  float q[kHeads][kMostWidth];
  float p[kHeads][kPartKeys];  // scores, then exponentials
  float o[kHeads][kMostWidth];
  int at[kPartKeys];  // row of the cache; −1: no key
};

__device__ __forceinline__ int BranchOf(const DecodeProblem& p, int part) {
  int branch = 0;
  for (int c = 0; c < kBranches; ++c) {
    if (part >= p.first_part[c] && part < p.first_part[c] + p.parts[c]) branch = c;
  }
  return branch;
}

// The row of the cache with key `i` of a row and group, −1 if there is none: `i` counts the blocks
// of cmp, the tokens of the window, and the tokens of the selected blocks.
__device__ __forceinline__ int CachedRow(const DecodeProblem& p, int branch, int row, int g,
                                         int i) {
  const int t = p.first + row, start = p.DocStart(row);
  if (branch == kCmp) {
    const KeyRange keys = BranchRule<kCmp>::Keys(p, t, start);
    return i >= keys.begin && i < keys.end ? i : -1;
  }
  if (branch == kWin) {
    const KeyRange keys = BranchRule<kWin>::Keys(p, t, start);
    return keys.begin + i < keys.end ? keys.begin + i - p.window_begin : -1;
  }
  const int slot = i / p.l_sel;
  if (slot >= p.n_sel) return -1;
  const int block = p.blocks[(int64_t{row} * p.groups + g) * p.n_sel + slot];
  if (block < 0) return -1;
  const KeyRange keys = BranchRule<kSel>::Keys(p, t, start);
  const int token = SelectionBlock(p, block).begin + i % p.l_sel;
  return token >= keys.begin && token < keys.end ? token : -1;
}

// The queries of the group in fp32, multiplied by the scale of the scores.
template <int kHeads>
__device__ __forceinline__ void LoadQueries(const DecodeProblem& p, int row, int g,
                                            PartShared<kHeads>& shared) {
  const bf16* q = p.q + (int64_t{row} * p.heads + g * p.h) * p.dk;
  for (int i = threadIdx.x; i < kHeads * p.dk; i += kThreads) {
    const int head = i / p.dk;
    shared.q[head][i % p.dk] = head < p.h ? __bfloat162float(q[i]) * p.scale : 0.0f;
  }
}

// scores[a] = q_a · k
template <int kHeads>
__device__ __forceinline__ void Scores(const DecodeProblem& p, const bf16* k,
                                       const PartShared<kHeads>& shared, float (&scores)[kHeads]) {
  for (int c = 0; c < p.dk; c += 8) {
    const Float8 key = Load8(k + c);
#pragma unroll
    for (int a = 0; a < kHeads; ++a) {
#pragma unroll
      for (int e = 0; e < 8; ++e) scores[a] = fmaf(shared.q[a][c + e], key.v[e], scores[a]);
    }
  }
}

// Scores → exponentials, a warp for each head; writes the statistics of the part.
template <int kHeads>
__device__ __forceinline__ void Exponentials(const DecodeProblem& p, int part, int row, int g,
                                             PartShared<kHeads>& shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int a = warp; a < p.h; a += kWarps) {
    float max = -INFINITY, sum = 0;
    for (int i = lane; i < kPartKeys; i += kWarp) max = fmaxf(max, shared.p[a][i]);
    max = WarpMax(max);
    const float from = max == -INFINITY ? 0.0f : max;
    for (int i = lane; i < kPartKeys; i += kWarp) {
      const float x = Exp2(shared.p[a][i] - from);
      shared.p[a][i] = x;
      sum += x;
    }
    sum = WarpSum(sum);
    if (lane == 0) p.stats[p.StatsAt(part, row, g * p.h + a)] = {max, sum};
  }
}

// part_o ← Σ p · v. A thread has 8 columns of every 2048/dv-th key; the sums of the threads are
// added over the lanes by a tree and over the warps in order.
template <int kHeads>
__device__ __forceinline__ void Values(const DecodeProblem& p, const bf16* v, int part, int row,
                                       int g, PartShared<kHeads>& shared) {
  const int chunks = p.dv / 8, chunk = threadIdx.x % chunks;
  const int64_t step = int64_t{p.groups} * p.dv;
  float sum[kHeads][8] = {};
  for (int i = threadIdx.x / chunks; i < kPartKeys; i += kThreads / chunks) {
    if (shared.at[i] < 0) continue;
    const Float8 value = Load8(v + shared.at[i] * step + g * p.dv + chunk * 8);
#pragma unroll
    for (int a = 0; a < kHeads; ++a) {
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[a][e] = fmaf(shared.p[a][i], value.v[e], sum[a][e]);
    }
  }
#pragma unroll
  for (int a = 0; a < kHeads; ++a) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      for (int lanes = chunks; lanes < kWarp; lanes *= 2) {
        sum[a][e] += __shfl_xor_sync(0xffffffffu, sum[a][e], lanes);
      }
    }
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int turn = 0; turn < kWarps; ++turn) {
    if (warp == turn && lane < chunks) {
#pragma unroll
      for (int a = 0; a < kHeads; ++a) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          float& to = shared.o[a][chunk * 8 + e];
          to = turn == 0 ? sum[a][e] : to + sum[a][e];
        }
      }
    }
    __syncthreads();
  }
  float* to = p.part_o + p.StatsAt(part, row, g * p.h) * p.dv;
  for (int i = threadIdx.x; i < p.h * p.dv; i += kThreads) to[i] = shared.o[i / p.dv][i % p.dv];
}

template <int kHeads>
__global__ void __launch_bounds__(kThreads)
    PartKernel(Begin begin, const __grid_constant__ DecodeProblem p, int part0) {
  __shared__ PartShared<kHeads> shared;
  begin.WaitForPrevious();
  const int part = part0 + blockIdx.x, g = blockIdx.y, row = blockIdx.z;
  const int branch = BranchOf(p, part), i = (part - p.first_part[branch]) * kPartKeys + threadIdx.x;
  const int at = CachedRow(p, branch, row, g, i);
  const int keys = __syncthreads_count(at >= 0);
  if (keys == 0) {
    if (threadIdx.x < p.h) {
      p.stats[p.StatsAt(part, row, g * p.h + threadIdx.x)] = {-INFINITY, 0.0f};
    }
    return;
  }
  if (threadIdx.x == 0 && p.v[branch] != nullptr) {
    atomicAdd(p.keys_read + branch, static_cast<unsigned long long>(keys));
  }
  LoadQueries(p, row, g, shared);
  shared.at[threadIdx.x] = at;
  __syncthreads();
  float scores[kHeads] = {};
  if (at >= 0) {
    Scores(p, p.k[branch] + (int64_t{at} * p.groups + g) * p.dk, shared, scores);
  }
#pragma unroll
  for (int a = 0; a < kHeads; ++a) {
    shared.p[a][threadIdx.x] = at >= 0 ? scores[a] : -INFINITY;
    if (branch == kCmp && p.scores != nullptr && at >= 0 && a < p.h) {
      p.scores[(int64_t{row} * p.heads + g * p.h + a) * p.score_step + at] = scores[a];
    }
  }
  __syncthreads();
  Exponentials(p, part, row, g, shared);
  __syncthreads();
  if (p.v[branch] != nullptr) Values(p, p.v[branch], part, row, g, shared);
}

// o = Σ part_o · 2^(max − largest max) / Σ …, of one row, head and branch; 0 without keys.
__global__ void SumKernel(Begin begin, const __grid_constant__ DecodeProblem p) {
  begin.WaitForPrevious();
  const int head = blockIdx.x, row = blockIdx.y, branch = blockIdx.z;
  if (p.o[branch] == nullptr) return;
  const int first = p.first_part[branch], end = first + p.parts[branch];
  float max = -INFINITY, sum = 0, o = 0;
  for (int part = first; part < end; ++part) {
    max = fmaxf(max, p.stats[p.StatsAt(part, row, head)].x);
  }
  for (int part = first; part < end; ++part) {
    const float2 stats = p.stats[p.StatsAt(part, row, head)];
    if (stats.y == 0.0f) continue;  // its part_o is not written
    const float weight = Exp2(stats.x - max);
    sum += stats.y * weight;
    o += p.part_o[p.StatsAt(part, row, head) * p.dv + threadIdx.x] * weight;
  }
  p.o[branch][(int64_t{row} * p.heads + head) * p.dv + threadIdx.x] =
      __float2bfloat16(sum > 0 ? o / sum : 0.0f);
}

absl::Status LaunchParts(const Exec& exec, const DecodeProblem& p, int part0, int parts) {
  if (parts == 0) return absl::OkStatus();
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned int>(parts), static_cast<unsigned int>(p.groups),
                   static_cast<unsigned int>(p.rows)),
      .block = kThreads};
  if (p.h <= 2) return Launch(exec, "attend_cached", PartKernel<2>, shape, p, part0);
  if (p.h <= 4) return Launch(exec, "attend_cached", PartKernel<4>, shape, p, part0);
  if (p.h <= 8) return Launch(exec, "attend_cached", PartKernel<8>, shape, p, part0);
  return Launch(exec, "attend_cached", PartKernel<kMostHeads>, shape, p, part0);
}

}  // namespace

absl::Status AttendCached(const Exec& exec, const AttendCachedArgs& args) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& s = config.shape;
  const CachedParts parts = CachedParts::Of(config, args.first + s.seq_len);
  DecodeProblem p{};
  p.l = s.l, p.d = s.d, p.l_sel = s.l_sel, p.n_sel = s.n_sel;
  p.window = s.window, p.rows = s.seq_len, p.first = args.first, p.groups = s.n_kv_groups;
  p.heads = s.n_heads, p.h = s.heads_per_group(), p.dk = s.d_k, p.dv = s.d_v;
  p.window_begin = args.window_begin;
  p.scale = kLog2E / std::sqrt(static_cast<float>(s.d_k));
  p.doc_start = args.doc_start.wanted() ? DataOf<int>(args.doc_start) : nullptr;
  p.q = DataOf<bf16>(args.q);
  p.blocks = config.has(kSel) ? DataOf<int>(args.blocks) : nullptr;
  p.keys_read = DataOf<unsigned long long>(args.keys_read);
  for (int c = 0; c < kBranches; ++c) {
    p.k[c] = DataOf<bf16>(args.k[c]);
    p.v[c] = config.branches[c] ? DataOf<bf16>(args.v[c]) : nullptr;
    p.o[c] = config.branches[c] ? DataOf<bf16>(args.o[c]) : nullptr;
  }
  // The parts of cmp and win first, which run together.
  std::copy(parts.count.begin(), parts.count.end(), p.parts);
  p.first_part[kWin] = p.parts[kCmp];
  p.first_part[kSel] = p.parts[kCmp] + p.parts[kWin];
  auto* scratch = DataOf<float>(args.scratch);
  p.score_step = parts.blocks;
  p.scores = config.has(kSel) ? scratch : nullptr;
  if (config.has(kSel)) scratch += RoundUp(p.rows * p.heads, 2) * p.score_step;
  p.stats = reinterpret_cast<float2*>(scratch);
  p.part_o = scratch + 2 * parts.total() * p.rows * p.heads;
  NSA_RETURN_IF_ERROR(LaunchParts(exec, p, 0, p.first_part[kSel]));
  if (config.has(kSel)) {
    NSA_RETURN_IF_ERROR(ChooseCachedBlocks(exec, p));
    NSA_RETURN_IF_ERROR(LaunchParts(exec, p, p.first_part[kSel], p.parts[kSel]));
  }
  return Launch(exec, "sum_parts", SumKernel,
                {.grid = dim3(static_cast<unsigned int>(p.heads), static_cast<unsigned int>(p.rows),
                              kBranches),
                 .block = static_cast<unsigned int>(p.dv)},
                p);
}

}  // namespace nsa::cuda
