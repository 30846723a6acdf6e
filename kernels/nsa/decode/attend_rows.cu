// Attention over cached keys. Four threads of a thread block have one key of its part: they read
// the key and the value once, multiply the key by the queries of all heads of the group, and leave
// the value in shared memory, from where a warp for each head adds up the values. The scores of
// compressed keys are kept for the selection of blocks.
#include <cmath>

#include "kernels/nsa/decode/choose_blocks.cuh"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSub = kThreads / kPartKeys;  // threads of a key
// Chunks of 8 columns in a thread.
template <int kWidth>
constexpr int kChunksOf = kWidth / 8 / kSub;
constexpr int kValueChunks = kChunksOf<kMostValueWidth>;

// kWidth: keys are at most so wide, 128 or 192.
template <int kHeads, int kWidth>
struct PartShared {
  float q[kHeads][kWidth];
  float p[kHeads][kPartKeys];          // scores, then exponentials
  bf16 v[kPartKeys][kMostValueWidth];  // 0 where there is no key
};

__device__ __forceinline__ int BranchOf(const DecodeProblem& p, int part) {
  int branch = 0;
  for (int c = 0; c < kBranches; ++c) {
    if (part >= p.first_part[c] && part < p.first_part[c] + p.parts[c]) branch = c;
  }
  return branch;
}

// The row of the cache with key `i` of a row and group, −1 if there is none: `i` counts the blocks
// of cmp, the tokens of the window, and the tokens of the selected `blocks`.
__device__ __forceinline__ int CachedRow(const DecodeProblem& p, int branch, int row,
                                         const int* blocks, int i) {
  const int t = p.PositionOf(row), start = p.DocStart(row);
  if (branch == kCmp) {
    const KeyRange keys = BranchRule<kCmp>::Keys(p, t, start);
    return i >= keys.begin && i < keys.end ? i : -1;
  }
  if (branch == kWin) {
    const KeyRange keys = BranchRule<kWin>::Keys(p, t, start);
    return keys.begin + i < keys.end ? keys.begin + i - p.WindowBegin() : -1;
  }
  const int slot = i / p.l_sel;
  if (slot >= p.n_sel) return -1;
  const int block = blocks[slot];
  if (block < 0) return -1;
  const KeyRange keys = BranchRule<kSel>::Keys(p, t, start);
  const int token = SelectionBlock(p, block).begin + i % p.l_sel;
  return token >= keys.begin && token < keys.end ? token : -1;
}

// The queries of the group in fp32, multiplied by the scale of the scores.
template <int kHeads, int kWidth>
__device__ __forceinline__ void LoadQueries(const DecodeProblem& p, int row, int g,
                                            PartShared<kHeads, kWidth>& shared) {
  const bf16* q = p.q + (int64_t{row} * p.heads + g * p.h) * p.dk;
  for (int i = threadIdx.x; i < kHeads * p.dk; i += kThreads) {
    const int head = i / p.dk;
    shared.q[head][i % p.dk] = head < p.h ? __bfloat162float(q[i]) * p.scale : 0.0f;
  }
}

// The chunks of 8 columns of a row of the cache that this thread has: every kSub-th. 0 without a
// row.
template <int kMost>
struct Chunks {
  uint4 raw[kMost];

  __device__ __forceinline__ void Load(const bf16* row, int width, int sub) {
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int c = (sub + j * kSub) * 8;
      raw[j] = row != nullptr && c < width ? *reinterpret_cast<const uint4*>(row + c) : uint4{};
    }
  }
};

// scores[a] = q_a · k, on all threads of a key.
template <int kHeads, int kWidth>
__device__ __forceinline__ void Scores(const DecodeProblem& p, const Chunks<kChunksOf<kWidth>>& k,
                                       int sub, const PartShared<kHeads, kWidth>& shared,
                                       float (&scores)[kHeads]) {
#pragma unroll
  for (int j = 0; j < kChunksOf<kWidth>; ++j) {
    const int c = (sub + j * kSub) * 8;
    if (c >= p.dk) break;
    const Float8 key = AsFloats(k.raw[j]);
#pragma unroll
    for (int a = 0; a < kHeads; ++a) {
#pragma unroll
      for (int e = 0; e < 8; ++e) scores[a] = fmaf(shared.q[a][c + e], key.v[e], scores[a]);
    }
  }
#pragma unroll
  for (int a = 0; a < kHeads; ++a) {
#pragma unroll
    for (int lanes = 1; lanes < kSub; lanes *= 2) {
      scores[a] += __shfl_xor_sync(0xffffffffu, scores[a], lanes);
    }
  }
}

// Scores → exponentials, a warp for each head; writes the statistics of the part.
template <int kHeads, int kWidth>
__device__ __forceinline__ void Exponentials(const DecodeProblem& p, int part, int row, int g,
                                             PartShared<kHeads, kWidth>& shared) {
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

// part_o ← Σ p · v, in the order of the keys: a warp for each head, two columns in a lane. The warp
// has written the exponentials of its heads itself.
template <int kHeads, int kWidth>
__device__ __forceinline__ void Values(const DecodeProblem& p, int part, int row, int g,
                                       const PartShared<kHeads, kWidth>& shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int a = warp; a < p.h; a += kWarps) {
    float* const to = p.part_o + p.StatsAt(part, row, g * p.h + a) * p.dv;
    for (int c = 2 * lane; c < p.dv; c += 2 * kWarp) {
      float2 sum = {0, 0};
#pragma unroll 16
      for (int i = 0; i < kPartKeys; ++i) {
        const float weight = shared.p[a][i];
        const float2 value =
            __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&shared.v[i][c]));
        sum.x = fmaf(weight, value.x, sum.x);
        sum.y = fmaf(weight, value.y, sum.y);
      }
      *reinterpret_cast<float2*>(to + c) = sum;
    }
  }
}

// kChooses: the parts are of sel, and each thread block chooses the blocks of its row and group.
template <int kHeads, bool kChooses, int kWidth = 128>
__global__ void __launch_bounds__(kThreads)
    PartKernel(Begin begin, const __grid_constant__ DecodeProblem p, int part0) {
  __shared__ PartShared<kHeads, kWidth> shared;
  begin.WaitForPrevious();
  const int part = part0 + blockIdx.x, g = blockIdx.y, row = blockIdx.z;
  const int branch = BranchOf(p, part), key = threadIdx.x / kSub, sub = threadIdx.x % kSub;
  const int* blocks = p.blocks + (int64_t{row} * p.groups + g) * p.n_sel;
  if constexpr (kChooses) {
    __shared__ ChoiceShared<kHeads> choice;
    ChooseHere(p, row, g, choice);
    blocks = choice.blocks;
  }
  const int at = CachedRow(p, branch, row, blocks, (part - p.first_part[branch]) * kPartKeys + key);
  const int keys = __syncthreads_count(at >= 0 && sub == 0);
  if (keys == 0) {
    if (threadIdx.x < p.h) {
      p.stats[p.StatsAt(part, row, g * p.h + threadIdx.x)] = {-INFINITY, 0.0f};
    }
    return;
  }
  const bool values = p.v[branch] != nullptr;
  if (threadIdx.x == 0 && values) {
    atomicAdd(p.keys_read + branch, static_cast<unsigned long long>(keys));
  }
  const int64_t in_cache = int64_t{at} * p.groups + g;
  Chunks<kChunksOf<kWidth>> k;
  Chunks<kValueChunks> v;
  k.Load(at >= 0 ? p.k[branch] + in_cache * p.dk : nullptr, p.dk, sub);
  v.Load(at >= 0 && values ? p.v[branch] + in_cache * p.dv : nullptr, p.dv, sub);
  LoadQueries(p, row, g, shared);
#pragma unroll
  for (int j = 0; j < kValueChunks; ++j) {
    const int c = (sub + j * kSub) * 8;
    if (c < p.dv) *reinterpret_cast<uint4*>(&shared.v[key][c]) = v.raw[j];
  }
  __syncthreads();
  float scores[kHeads] = {};
  Scores(p, k, sub, shared, scores);
#pragma unroll
  for (int a = 0; a < kHeads; ++a) {
    if (a % kSub != sub) continue;
    shared.p[a][key] = at >= 0 ? scores[a] : -INFINITY;
    if (branch == kCmp && p.scores != nullptr && at >= 0 && a < p.h) {
      p.scores[(int64_t{row} * p.heads + g * p.h + a) * p.score_step + at] = scores[a];
    }
  }
  __syncthreads();
  Exponentials(p, part, row, g, shared);
  __syncwarp();
  if (values) Values(p, part, row, g, shared);
}

template <bool kChooses>
absl::Status LaunchParts(const Exec& exec, const DecodeProblem& p, int part0, int parts) {
  if (parts == 0) return absl::OkStatus();
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned int>(parts), static_cast<unsigned int>(p.groups),
                   static_cast<unsigned int>(p.rows)),
      .block = kThreads};
  const auto launch = [&](auto kernel) {
    return Launch(exec, "attend_cached", kernel, shape, p, part0);
  };
  if (p.dk > 128) return launch(PartKernel<kMostHeads, kChooses, kMostKeyWidth>);
  if (p.h <= 2) return launch(PartKernel<2, kChooses>);
  if (p.h <= 4) return launch(PartKernel<4, kChooses>);
  if (p.h <= 8) return launch(PartKernel<8, kChooses>);
  return launch(PartKernel<kMostHeads, kChooses>);
}

absl::Status AttendSelected(const Exec& exec, const DecodeProblem& p) {
  const int part0 = p.first_part[kSel], parts = p.parts[kSel];
  if (ChoosesInParts(p)) return LaunchParts<true>(exec, p, part0, parts);
  NSA_RETURN_IF_ERROR(ChooseCachedBlocks(exec, p));
  return LaunchParts<false>(exec, p, part0, parts);
}

DecodeGate GateOf(const AttendCachedArgs& args) {
  DecodeGate gate{.sigmoid = args.config.gate == GateKind::kSigmoid,
                  .q = DataOf<bf16>(args.q_unrotated),
                  .fc1_w = DataOf<bf16>(args.gate.fc1_w),
                  .fc1_b = DataOf<bf16>(args.gate.fc1_b),
                  .fc2_w = DataOf<bf16>(args.gate.fc2_w),
                  .fc2_b = DataOf<bf16>(args.gate.fc2_b),
                  .o = DataOf<bf16>(args.o)};
  for (int c = 0; c < kBranches; ++c) {
    if (args.config.branches[c]) gate.branch[gate.branches++] = c;
  }
  return gate;
}

}  // namespace

absl::Status AttendCached(const Exec& exec, const AttendCachedArgs& args) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& s = config.shape;
  const CachedParts parts = CachedParts::Of(config, args.tokens);
  DecodeProblem p{};
  p.l = s.l, p.d = s.d, p.l_sel = s.l_sel, p.n_sel = s.n_sel;
  p.window = s.window, p.rows = s.seq_len, p.tokens = args.tokens, p.groups = s.n_kv_groups;
  p.heads = s.n_heads, p.h = s.heads_per_group(), p.dk = s.d_k, p.dv = s.d_v;
  p.scale = kLog2E / std::sqrt(static_cast<float>(s.d_k));
  p.at = DataOf<int>(args.at);
  p.doc_start = args.doc_start.wanted() ? DataOf<int>(args.doc_start) : nullptr;
  p.q = DataOf<bf16>(args.q);
  p.blocks = config.has(kSel) ? DataOf<int>(args.blocks) : nullptr;
  p.keys_read = DataOf<unsigned long long>(args.keys_read);
  for (int c = 0; c < kBranches; ++c) {
    p.k[c] = DataOf<bf16>(args.k[c]);
    p.v[c] = config.branches[c] ? DataOf<bf16>(args.v[c]) : nullptr;
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
  NSA_RETURN_IF_ERROR(LaunchParts<false>(exec, p, 0, p.first_part[kSel]));
  if (config.has(kSel)) NSA_RETURN_IF_ERROR(AttendSelected(exec, p));
  return SumParts(exec, p, GateOf(args));
}

}  // namespace nsa::cuda
