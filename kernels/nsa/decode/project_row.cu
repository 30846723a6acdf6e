// The projections of one token. A thread block has the pairs of columns that RoPE turns together:
// two or four neighbouring rows of W. With qk_norm it has a whole head, whose columns it adds up
// the squares of. The projection is rounded to bf16 before it is turned, as it is between the
// kernels of more rows.
#include "kernels/check.h"
#include "kernels/nn/rope_angles.cuh"
#include "kernels/nsa/decode/project_row.h"
#include "kernels/nsa/decode/row_dot.cuh"

namespace nsa::cuda {
namespace {

constexpr int kMostParts = 1 + 2 * kBranches;

// Part 0 of the columns is q, odd parts are keys, the other even parts are values.
struct ProjectProblem {
  int in, dk, dv;
  float eps;  // of the norm, and of qk_norm
  const bf16 *x, *norm, *w;
  const bf16* bias;                 // may be null
  const bf16 *q_weight, *k_weight;  // of normalized heads; may be null
  const int* at;                    // SplitProjectionsArgs::at
  int parts;
  int begin[kMostParts + 1];  // columns
  int branch[kMostParts];     // of the keys and values
  bf16* to[kMostParts];
  bf16* q_rotated;
};

// A projection with its bias, rounded to bf16.
__device__ __forceinline__ float Projected(const ProjectProblem& p, int column, float product) {
  const float bias = p.bias == nullptr ? 0.0f : __bfloat162float(p.bias[column]);
  return __bfloat162float(__float2bfloat16(product + bias));
}

// Writes a column; `other` is the other one of its pair. `factor` is 1, or with qk_norm
// that of the head.
__device__ __forceinline__ void Store(const ProjectProblem& p, const RopeFrequencies& f, int column,
                                      float value, float other, float factor) {
  int part = 0;
  while (column >= p.begin[part + 1]) ++part;
  const int in_part = column - p.begin[part], position = p.at[0];
  float rotated = value;
  if (part == 0 || part % 2 == 1) {
    const float2 angle = RopeAngle(f, position, in_part % p.dk / 2);  // cosine, sine
    const bf16* const weight = part == 0 ? p.q_weight : p.k_weight;
    float own = factor, pair = factor;
    if (weight != nullptr) {
      own *= __bfloat162float(weight[in_part % p.dk]);
      pair *= __bfloat162float(weight[(in_part ^ 1) % p.dk]);
    }
    rotated = value * own * angle.x + (in_part % 2 == 0 ? -other : other) * pair * angle.y;
  }
  if (part == 0) {
    p.to[0][in_part] = __float2bfloat16(value);
    p.q_rotated[in_part] = __float2bfloat16(rotated);
    return;
  }
  const int64_t row = position - p.at[1 + p.branch[part]];
  p.to[part][row * (p.begin[part + 1] - p.begin[part]) + in_part] = __float2bfloat16(rotated);
}

// kSplit: warps of a row of W.
template <int kSplit>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    ProjectRowKernel(Begin begin, const __grid_constant__ ProjectProblem p,
                     const __grid_constant__ RopeFrequencies f) {
  constexpr int kRows = kRowWarps / kSplit;
  static_assert(kRows % 2 == 0);
  __shared__ float columns[kRows];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int first = static_cast<int>(blockIdx.x) * kRows;
  const bf16* const w = p.w + int64_t{first + warp / kSplit} * p.in;
  if (warp % kSplit == 0) PrefetchRow(w, p.in);
  begin.WaitForPrevious();
  const float y = RowDot<true, kSplit>(w, p.x, p.norm, p.in, p.eps);
  if (threadIdx.x % kWarp == 0 && warp % kSplit == 0) {
    columns[warp / kSplit] = Projected(p, first + warp / kSplit, y);
  }
  __syncthreads();
  const int i = threadIdx.x;
  if (i < kRows) Store(p, f, first + i, columns[i], columns[i ^ 1], 1.0f);
}

constexpr int kHeadWarps = 16;
constexpr int kMostHeadWidth = 192;

// The first column of the head of a thread block, and its width.
struct Head {
  int first, width;
  bool turned;

  __device__ static Head Of(const ProjectProblem& p, int head) {
    for (int part = 0;; ++part) {
      const bool turned = part == 0 || part % 2 == 1;
      const int width = turned ? p.dk : p.dv, first = p.begin[part] + head * width;
      if (first < p.begin[part + 1]) return {first, width, turned};
      head -= (p.begin[part + 1] - p.begin[part]) / width;
    }
  }
};

// The same with qk_norm. A warp has width / kHeadWarps rows of W.
__global__ void __launch_bounds__(kHeadWarps* kWarp)
    ProjectHeadsKernel(Begin begin, const __grid_constant__ ProjectProblem p,
                       const __grid_constant__ RopeFrequencies f) {
  __shared__ float columns[kMostHeadWidth];
  __shared__ float factor;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  const Head head = Head::Of(p, static_cast<int>(blockIdx.x));
  const bf16* const w = p.w + int64_t{head.first} * p.in;
  for (int row = warp; row < head.width; row += kHeadWarps) {
    PrefetchRow(w + int64_t{row} * p.in, p.in);
  }
  begin.WaitForPrevious();
  for (int row = warp; row < head.width; row += kHeadWarps) {
    const float y = RowDot<true, 1>(w + int64_t{row} * p.in, p.x, p.norm, p.in, p.eps);
    if (lane == 0) columns[row] = Projected(p, head.first + row, y);
  }
  __syncthreads();
  if (warp == 0 && head.turned) {
    float squares = 0;
    for (int i = lane; i < head.width; i += kWarp) squares = fmaf(columns[i], columns[i], squares);
    squares = WarpSum(squares);
    if (lane == 0) factor = rsqrtf(squares / static_cast<float>(head.width) + p.eps);
  }
  __syncthreads();
  const int i = threadIdx.x;
  if (i >= head.width) return;
  Store(p, f, head.first + i, columns[i], columns[i ^ 1], head.turned ? factor : 1.0f);
}

absl::Status Check(const ProjectRowArgs& args) {
  constexpr DType kType = DType::kBf16;
  const SplitProjectionsArgs& split = args.split;
  const NsaShape& s = split.config.shape;
  const int64_t width = ProjectionWidth(split.config);
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("project_row", "in", args.in));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, args.in, kType, "in"));
  NSA_RETURN_IF_ERROR(CheckTensor("norm", args.norm, args.in, kType, "in"));
  NSA_RETURN_IF_ERROR(CheckTensor("w", args.w, args.in * width, kType, "width·in"));
  NSA_RETURN_IF_ERROR(CheckOptional("bias", args.bias, width, kType, "width"));
  NSA_RETURN_IF_ERROR(CheckTensor("at", split.at, 1 + kBranches, DType::kI32, "1 + branches"));
  if (split.config.qk_norm_weights) {
    NSA_RETURN_IF_ERROR(CheckTensor("norm_weights.q", split.norm_weights.q, s.d_k, kType, "dk"));
    NSA_RETURN_IF_ERROR(CheckTensor("norm_weights.k", split.norm_weights.k, s.d_k, kType, "dk"));
  }
  const int64_t q = int64_t{s.n_heads} * s.d_k, groups = s.n_kv_groups;
  NSA_RETURN_IF_ERROR(CheckTensor("q", split.q, q, kType, "H·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("q_rotated", split.q_rotated, q, kType, "H·dk"));
  for (int c = 0; c < kBranches; ++c) {
    if (!split.config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(CheckTensor("k", split.k[c], groups * s.d_k, kType, "G·dk"));
    NSA_RETURN_IF_ERROR(CheckTensor("v", split.v[c], groups * s.d_v, kType, "G·dv"));
  }
  return absl::OkStatus();
}

ProjectProblem ProblemOf(const ProjectRowArgs& args) {
  const SplitProjectionsArgs& split = args.split;
  const NsaShape& s = split.config.shape;
  ProjectProblem p{.in = static_cast<int>(args.in),
                   .dk = s.d_k,
                   .dv = s.d_v,
                   .eps = split.config.norm_eps,
                   .x = DataOf<bf16>(args.x),
                   .norm = DataOf<bf16>(args.norm),
                   .w = DataOf<bf16>(args.w),
                   .bias = DataOf<bf16>(args.bias),
                   .q_weight = DataOf<bf16>(split.norm_weights.q),
                   .k_weight = DataOf<bf16>(split.norm_weights.k),
                   .at = DataOf<int>(split.at)};
  const auto add = [&p](int branch, int width, bf16* to) {
    p.branch[p.parts] = branch, p.to[p.parts] = to;
    p.begin[p.parts + 1] = p.begin[p.parts] + width;
    ++p.parts;
  };
  add(0, s.n_heads * s.d_k, DataOf<bf16>(split.q));
  for (const Branch branch : kProjectionOrder) {
    if (!split.config.has(branch)) continue;
    add(branch, s.n_kv_groups * s.d_k, DataOf<bf16>(split.k[branch]));
    add(branch, s.n_kv_groups * s.d_v, DataOf<bf16>(split.v[branch]));
  }
  p.q_rotated = DataOf<bf16>(split.q_rotated);
  return p;
}

}  // namespace

absl::Status ProjectRow(const Exec& exec, const ProjectRowArgs& args) {
  NSA_RETURN_IF_ERROR(Check(args));
  const ProjectProblem p = ProblemOf(args);
  const NsaLayerConfig& config = args.split.config;
  const NsaShape& s = config.shape;
  const RopeFrequencies f =
      FrequenciesOf(s.d_k, config.rope_base, config.rope_scale, config.rope_scaling);
  if (config.qk_norm) {
    const int heads = s.n_heads + 2 * config.n_branches() * s.n_kv_groups;
    return Launch(exec, "project_row", ProjectHeadsKernel,
                  {.grid = static_cast<unsigned int>(heads), .block = kHeadWarps * kWarp}, p, f);
  }
  constexpr int kSplitLong = 2;
  const bool split = p.in >= kLongRow;
  // All widths are multiples of 16, so that no thread block has columns after the last.
  const unsigned int grid = GridFor(p.begin[p.parts], split ? kRowWarps / kSplitLong : kRowWarps);
  return Launch(exec, "project_row", split ? ProjectRowKernel<kSplitLong> : ProjectRowKernel<1>,
                {.grid = grid, .block = kRowWarps * kWarp}, p, f);
}

}  // namespace nsa::cuda
