// Splitting projections on CUDA; limited by memory bandwidth. A thread block processes a few
// tokens: their angles are computed once for all heads, then every 16 bytes of `wide` are read
// once, by the thread that also rotates them. Joining is needed with qk_norm only
// (normalized_projections.cu): otherwise the attention's backward writes the gradient of `wide`
// itself.
#include "kernels/cuda/launch.h"
#include "kernels/nsa/layer/projection_columns.cuh"

namespace nsa::cuda {
namespace {

constexpr int kUnroll = 4;  // chunks of 16 bytes in flight in a thread

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

__global__ void __launch_bounds__(kThreads)
    SplitKernel(Begin begin, const __grid_constant__ Columns c,
                const __grid_constant__ RopeFrequencies f, const bf16* __restrict__ wide,
                const __grid_constant__ SplitParts parts) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t row0 = int64_t{1} * blockIdx.x * kTokens;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, c.rows - row0));
  const int width = 4 * c.head_chunks;
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
      const bool copied = !at.turned() || (at.part == 0 && to != nullptr);
      if (copied) *reinterpret_cast<uint4*>(to + row) = raw[u];
      if (!at.turned()) continue;
      Store8((at.part == 0 ? parts.q_rotated : to) + row,
             Rotated(AsFloats(raw[u]), at.AnglesIn(angles, c), 1.0f));
    }
  }
}

// Of the queries, and of the keys of every branch in turn.
absl::Status HeadWeightGradients(const Exec& exec, const JoinProjectionsArgs& args,
                                 const RopeFrequencies& f) {
  const NsaShape& s = args.config.shape;
  const int64_t tokens = int64_t{1} * s.batch * s.seq_len;
  NSA_RETURN_IF_ERROR(HeadWeightGradient(exec,
                                         {.count = tokens * s.n_heads,
                                          .heads = s.n_heads,
                                          .seq_len = s.seq_len,
                                          .d_k = s.d_k,
                                          .dy = DataOf<bf16>(args.dq),
                                          .unit = DataOf<bf16>(args.q_unit),
                                          .dweight = DataOf<float>(args.dq_weight)},
                                         f));
  for (const Branch branch : kProjectionOrder) {
    if (!args.config.has(branch)) continue;
    NSA_RETURN_IF_ERROR(HeadWeightGradient(exec,
                                           {.count = tokens * s.n_kv_groups,
                                            .heads = s.n_kv_groups,
                                            .seq_len = s.seq_len,
                                            .d_k = s.d_k,
                                            .dy = DataOf<bf16>(args.dk[branch]),
                                            .unit = DataOf<bf16>(args.k_unit[branch]),
                                            .dweight = DataOf<float>(args.dk_weight)},
                                           f));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SplitProjections(const Exec& exec, const SplitProjectionsArgs& args) {
  Columns c = ColumnsOf(args.config);
  c.first = args.first;
  c.at = args.at.wanted() ? DataOf<int>(args.at) : nullptr;
  SplitParts parts{{DataOf<bf16>(args.q)}, DataOf<bf16>(args.q_rotated)};
  SplitNorm norm{args.config.norm_eps, {DataOf<float>(args.q_rstd)}};
  if (args.config.qk_norm_weights) {
    norm.q_weight = DataOf<bf16>(args.norm_weights.q);
    norm.k_weight = DataOf<bf16>(args.norm_weights.k);
    norm.unit[0] = DataOf<bf16>(args.q_unit);
  }
  int count = 1;
  for (const Branch branch : kProjectionOrder) {
    if (!args.config.has(branch)) continue;
    c.branch[count] = c.branch[count + 1] = branch;
    norm.rstd[count] = DataOf<float>(args.k_rstd[branch]);
    if (args.config.qk_norm_weights) norm.unit[count] = DataOf<bf16>(args.k_unit[branch]);
    parts.to[count++] = DataOf<bf16>(args.k[branch]);
    parts.to[count++] = DataOf<bf16>(args.v[branch]);
  }
  const RopeFrequencies f = FrequenciesOf(args.config);
  if (args.config.qk_norm) {
    return SplitNormalized(exec, c, f, DataOf<bf16>(args.wide), parts, norm);
  }
  return Launch(exec, "split_projections", SplitKernel,
                {.grid = GridFor(c.rows, kTokens), .block = kThreads}, c, f,
                DataOf<bf16>(args.wide), parts);
}

absl::Status JoinProjections(const Exec& exec, const JoinProjectionsArgs& args) {
  if (!args.config.qk_norm) {
    return absl::InvalidArgumentError(
        "join_projections: qk_norm: false (must be true on CUDA); have NsaLayerBackward write "
        "`wide`");
  }
  const Columns c = ColumnsOf(args.config);
  JoinParts parts{{DataOf<bf16>(args.dq)},
                  args.config.has_gate() ? DataOf<bf16>(args.dq_mean) : nullptr};
  const bool weighted = args.config.qk_norm_weights;
  JoinNorm norm{{DataOf<bf16>(weighted ? args.q_unit : args.q_rotated)},
                {DataOf<float>(args.q_rstd)}};
  if (weighted) {
    norm.q_weight = DataOf<bf16>(args.norm_weights.q);
    norm.k_weight = DataOf<bf16>(args.norm_weights.k);
  }
  int count = 1;
  for (const Branch branch : kProjectionOrder) {
    if (!args.config.has(branch)) continue;
    norm.heads[count] = DataOf<bf16>(weighted ? args.k_unit[branch] : args.k_rotated[branch]);
    norm.rstd[count] = DataOf<float>(args.k_rstd[branch]);
    parts.from[count++] = DataOf<bf16>(args.dk[branch]);
    parts.from[count++] = DataOf<bf16>(args.dv[branch]);
  }
  const RopeFrequencies f = FrequenciesOf(args.config);
  if (weighted) NSA_RETURN_IF_ERROR(HeadWeightGradients(exec, args, f));
  return JoinNormalized(exec, c, f, parts, norm, DataOf<bf16>(args.wide));
}

}  // namespace nsa::cuda
