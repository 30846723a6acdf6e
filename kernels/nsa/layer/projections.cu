// Splitting and joining projections on CUDA; limited by memory bandwidth. A thread block processes
// a few tokens: their angles are computed once for all heads, then every 16 bytes of `wide` are
// read (or written) once, by the thread that also rotates them.
#include "kernels/cuda/launch.h"
#include "kernels/nn/rope_angles.cuh"
#include "kernels/nsa/layer/projections.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 8;  // of a thread block
constexpr int kUnroll = 4;  // chunks of 16 bytes in flight in a thread
constexpr int kMostParts = 1 + 2 * kBranches;

// The columns of `wide`. Part 0 is q, odd parts are keys, the other even parts are values. Widths
// are in chunks of 8 columns.
struct Columns {
  int begin[kMostParts + 1];
  int count;
  int head_shift;  // log2 of the number of chunks in a head of q or of the keys
  int seq_len, first, heads_a_group, groups;  // first: position
  unsigned int group_factor;                  // ⌈2³² / heads_a_group⌉
  int branch[kMostParts];                     // of the keys and values
  const int* at;                              // SplitProjectionsArgs::at, may be null
  int64_t rows;
};

Columns ColumnsOf(const NsaLayerConfig& config) {
  const NsaShape& s = config.shape;
  Columns c{};
  c.rows = int64_t{1} * s.batch * s.seq_len;
  c.seq_len = s.seq_len, c.groups = s.n_kv_groups, c.heads_a_group = s.heads_per_group();
  c.group_factor =
      static_cast<unsigned int>(((int64_t{1} << 32) + c.heads_a_group - 1) / c.heads_a_group);
  while (8 << c.head_shift < s.d_k) ++c.head_shift;
  c.begin[c.count = 1] = s.n_heads * s.d_k / 8;
  for (int branch = 0; branch < config.n_branches(); ++branch) {
    for (const int width : {s.d_k, s.d_v}) {
      c.begin[c.count + 1] = c.begin[c.count] + s.n_kv_groups * width / 8;
      ++c.count;
    }
  }
  return c;
}

// The position of a chunk among those of a thread block's tokens.
struct Place {
  int token, part, column;  // column within the part
  int64_t in_part;          // chunks from the beginning of the part's tensor

  // The same in a cache that holds the tokens from position `at[1 + branch]` on.
  __device__ int64_t InCache(const Columns& c) const {
    if (c.at == nullptr || part == 0) return in_part;
    const int64_t rows = c.at[0] - c.at[1 + c.branch[part]];
    return in_part + rows * (c.begin[part + 1] - c.begin[part]);
  }
  __device__ bool turned() const { return part == 0 || part % 2 == 1; }
  // The angles of the chunk's four pairs.
  __device__ const float2* AnglesIn(const float2* angles, const Columns& c) const {
    return angles + (((token << c.head_shift) + (column & ((1 << c.head_shift) - 1))) << 2);
  }
};

// Iterates over a thread's chunks, which are kThreads apart. Token and column are computed without
// a division per chunk.
struct Walk {
  int token, column;
  const int step_tokens, step_columns;

  __device__ explicit Walk(int width)
      : token(threadIdx.x / width),
        column(threadIdx.x % width),
        step_tokens(kThreads / width),
        step_columns(kThreads % width) {}
  __device__ Place Next(const Columns& c, int64_t row0) {
    Place at{token, 0, column, 0};
    while (column >= c.begin[at.part + 1]) ++at.part;
    const int begin = c.begin[at.part];
    at.column -= begin;
    at.in_part = (row0 + token) * (c.begin[at.part + 1] - begin) + at.column;
    token += step_tokens, column += step_columns;
    if (column >= c.begin[c.count]) column -= c.begin[c.count], ++token;
    return at;
  }
};

struct SplitParts {
  bf16* to[kMostParts];
  bf16* q_rotated;
};

__global__ void __launch_bounds__(kThreads)
    SplitKernel(Begin begin, const __grid_constant__ Columns c,
                const __grid_constant__ RopeFrequencies f, const bf16* __restrict__ wide,
                const __grid_constant__ SplitParts parts) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t row0 = int64_t{1} * blockIdx.x * kTokens;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, c.rows - row0));
  const int width = 4 << c.head_shift;
  if (c.at == nullptr) FillRopeAngles(f, row0, tokens, c.seq_len, c.first, width, angles);
  begin.WaitForPrevious();
  if (c.at != nullptr) FillRopeAngles(f, row0, tokens, c.seq_len, c.at[0], width, angles);
  __syncthreads();
  const int chunks = tokens * c.begin[c.count];
  const bf16* from = wide + 8 * row0 * c.begin[c.count];
  Walk walk(c.begin[c.count]);
  for (int base = threadIdx.x; base < chunks; base += kUnroll * kThreads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + u * kThreads < chunks) raw[u] = LoadConst16(from + 8 * (base + u * kThreads));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + u * kThreads >= chunks) break;
      const Place at = walk.Next(c, row0);
      bf16* to = parts.to[at.part];
      const int64_t row = 8 * at.InCache(c);
      if (!at.turned() || at.part == 0) *reinterpret_cast<uint4*>(to + row) = raw[u];
      if (!at.turned()) continue;
      Store8((at.part == 0 ? parts.q_rotated : to) + row,
             Rotated(AsFloats(raw[u]), at.AnglesIn(angles, c), 1.0f));
    }
  }
}

struct JoinParts {
  const bf16* from[kMostParts];
  const bf16* dq_mean;  // may be null
};

__global__ void __launch_bounds__(kThreads, 3)
    JoinKernel(Begin begin, const __grid_constant__ Columns c,
               const __grid_constant__ RopeFrequencies f, const __grid_constant__ JoinParts parts,
               bf16* wide) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t row0 = int64_t{1} * blockIdx.x * kTokens;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, c.rows - row0));
  FillRopeAngles(f, row0, tokens, c.seq_len, c.first, 4 << c.head_shift, angles);
  __syncthreads();
  begin.WaitForPrevious();
  const int chunks = tokens * c.begin[c.count];
  const float share = 1.0f / static_cast<float>(c.heads_a_group);
  bf16* to = wide + 8 * row0 * c.begin[c.count];
  Walk walk(c.begin[c.count]);
  for (int base = threadIdx.x; base < chunks; base += kUnroll * kThreads) {
    uint4 raw[kUnroll], raw_mean[kUnroll];
    Place place[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      raw_mean[u] = uint4{0, 0, 0, 0};
      if (base + u * kThreads >= chunks) break;
      const Place at = place[u] = walk.Next(c, row0);
      raw[u] = LoadConst16(parts.from[at.part] + 8 * at.in_part);
      if (at.part == 0 && parts.dq_mean != nullptr) {
        const unsigned int head = at.column >> c.head_shift;
        const int group = c.heads_a_group == 1 ? head : __umulhi(head, c.group_factor);
        const int64_t mean_row = (row0 + at.token) * c.groups + group;
        const int chunk = at.column & ((1 << c.head_shift) - 1);
        raw_mean[u] = LoadConst16(parts.dq_mean + 8 * ((mean_row << c.head_shift) + chunk));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + u * kThreads >= chunks) break;
      if (place[u].turned()) {
        Float8 y = Rotated(AsFloats(raw[u]), place[u].AnglesIn(angles, c), -1.0f);
        const Float8 mean = AsFloats(raw_mean[u]);
#pragma unroll
        for (int e = 0; e < 8; ++e) y.v[e] = fmaf(mean.v[e], share, y.v[e]);
        raw[u] = AsBf16(y);
      }
      *reinterpret_cast<uint4*>(to + 8 * (base + u * kThreads)) = raw[u];
    }
  }
}

}  // namespace

absl::Status SplitProjections(const Exec& exec, const SplitProjectionsArgs& args) {
  Columns c = ColumnsOf(args.config);
  c.first = args.first;
  c.at = args.at.wanted() ? DataOf<int>(args.at) : nullptr;
  SplitParts parts{{DataOf<bf16>(args.q)}, DataOf<bf16>(args.q_rotated)};
  int count = 1;
  for (const Branch branch : kProjectionOrder) {
    if (!args.config.has(branch)) continue;
    c.branch[count] = c.branch[count + 1] = branch;
    parts.to[count++] = DataOf<bf16>(args.k[branch]);
    parts.to[count++] = DataOf<bf16>(args.v[branch]);
  }
  return Launch(exec, "split_projections", SplitKernel,
                {.grid = GridFor(c.rows, kTokens), .block = kThreads}, c,
                FrequenciesOf(args.config.shape.d_k, args.config.rope_base, args.config.rope_scale),
                DataOf<bf16>(args.wide), parts);
}

absl::Status JoinProjections(const Exec& exec, const JoinProjectionsArgs& args) {
  const Columns c = ColumnsOf(args.config);
  JoinParts parts{{DataOf<bf16>(args.dq)},
                  args.config.has_gate() ? DataOf<bf16>(args.dq_mean) : nullptr};
  int count = 1;
  for (const Branch branch : kProjectionOrder) {
    if (!args.config.has(branch)) continue;
    parts.from[count++] = DataOf<bf16>(args.dk[branch]);
    parts.from[count++] = DataOf<bf16>(args.dv[branch]);
  }
  return Launch(exec, "join_projections", JoinKernel,
                {.grid = GridFor(c.rows, kTokens), .block = kThreads}, c,
                FrequenciesOf(args.config.shape.d_k, args.config.rope_base, args.config.rope_scale),
                parts, DataOf<bf16>(args.wide));
}

}  // namespace nsa::cuda
