// Audit of the attention on CUDA: one warp per (sampled query, head). The lanes take the keys in
// strides of 32; each keeps its running maximum, the sum of all weights and the sum of those that
// the branch reads, and the warp combines them at the end.
#include <cmath>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nsa/audit/audit.h"

namespace nsa::cuda {
namespace {

constexpr int kWarps = 4;     // of a thread block
constexpr int kWidest = 192;  // dk at most

struct AuditProblem {
  NsaShape shape;
  bool window;
  float scale;
  const bf16 *q, *k;
  const int *blocks, *doc_start;
  int64_t step;
  int pairs;  // N·H
  float* kept;
};

// A running softmax over some keys.
struct Mass {
  float max = -INFINITY;
  float total = 0;
  float kept = 0;

  __device__ __forceinline__ void Add(float logit, bool reads) {
    const float higher = fmaxf(max, logit);
    const float shrink = expf(max - higher), weight = expf(logit - higher);
    total = total * shrink + weight;
    kept = kept * shrink + (reads ? weight : 0.0f);
    max = higher;
  }
};

// The share of the warp's keys that the branch reads.
__device__ __forceinline__ float Share(const Mass& lane) {
  const float factor = expf(lane.max - WarpMax(lane.max));  // 0 in a lane without keys
  const float kept = WarpSum(lane.kept * factor);
  return kept / WarpSum(lane.total * factor);
}

__device__ __forceinline__ float Dot(const float* q, const bf16* key, int dk) {
  float sum = 0;
  for (int c = 0; c < dk; c += 8) {
    const Float8 x = Load8(key + c);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += q[c + i] * x.v[i];
  }
  return sum;
}

__global__ void AuditKernel(Begin begin, AuditProblem p) {
  __shared__ float queries[kWarps][kWidest];
  begin.WaitForPrevious();
  const NsaShape& s = p.shape;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int pair = blockIdx.x * kWarps + warp;
  if (pair >= p.pairs) return;  // the whole warp
  const int a = pair % s.n_heads, g = a / (s.n_heads / s.n_kv_groups);
  const int token = AuditedQuery(p.step, pair / s.n_heads, s.batch * s.seq_len);
  const int t = token % s.seq_len;
  const int first = p.doc_start == nullptr ? 0 : p.doc_start[token];

  float* const q = queries[warp];
  const bf16* const row = p.q + (int64_t{1} * token * s.n_heads + a) * s.d_k;
  for (int c = lane; c < s.d_k; c += kWarp) q[c] = p.scale * __bfloat162float(row[c]);
  __syncwarp();

  const KeyRange seen = BranchRule<kSel>::Keys(s, t, first);
  const KeyRange last = BranchRule<kWin>::Keys(s, t, first);
  const int* const ids =
      p.window ? nullptr : p.blocks + (int64_t{1} * token * s.n_kv_groups + g) * s.n_sel;
  const bf16* const keys = p.k + (int64_t{1} * (token - t) * s.n_kv_groups + g) * s.d_k;
  const int64_t stride = int64_t{1} * s.n_kv_groups * s.d_k;
  Mass mass;
  int slot = 0;  // the first that may hold this key's block: ids ascend, then are −1
  for (int j = seen.begin + lane; j < seen.end; j += kWarp) {
    bool reads = j >= last.begin;
    if (!p.window) {
      while (slot < s.n_sel && ids[slot] >= 0 && SelectionBlock(s, ids[slot]).end <= j) ++slot;
      reads = slot < s.n_sel && ids[slot] >= 0 && SelectionBlock(s, ids[slot]).begin <= j;
    }
    mass.Add(Dot(q, keys + j * stride, s.d_k), reads);
  }
  const float share = Share(mass);
  if (lane == 0) p.kept[pair] = share;
}

// One block of threads copies the row of one query.
__global__ void ChoicesKernel(Begin begin, NsaShape s, const int* blocks, const int* doc_start,
                              int64_t step, int* chosen) {
  begin.WaitForPrevious();
  const int token = AuditedQuery(step, blockIdx.x, s.batch * s.seq_len);
  const int t = token % s.seq_len, lists = s.n_kv_groups * s.n_sel;
  const int first = doc_start == nullptr ? 0 : doc_start[token];
  int* const row = chosen + int64_t{1} * blockIdx.x * ChoiceWidth(s);
  const int* const own = blocks + int64_t{1} * token * lists;
  if (threadIdx.x == 0) row[0] = first;
  for (int i = threadIdx.x; i < lists; i += blockDim.x) {
    row[1 + i] = own[i];
    row[1 + lists + i] = t > first ? (own - lists)[i] : -1;
  }
}

}  // namespace

absl::Status AuditChoices(const Exec& exec, const AuditChoicesArgs& args) {
  return Launch(exec, "audit", ChoicesKernel, {.grid = GridFor(args.queries, 1), .block = kWarp},
                args.shape, DataOf<int>(args.blocks), DataOf<int>(args.doc_start), args.step,
                DataOf<int>(args.chosen));
}

absl::Status AuditAttention(const Exec& exec, const AuditArgs& args) {
  const float root = std::sqrt(static_cast<float>(args.shape.d_k));
  const AuditProblem p{.shape = args.shape,
                       .window = args.branch == kWin,
                       .scale = args.scale != 0 ? args.scale : 1.0f / root,
                       .q = DataOf<bf16>(args.q),
                       .k = DataOf<bf16>(args.k),
                       .blocks = DataOf<int>(args.blocks),
                       .doc_start = DataOf<int>(args.doc_start),
                       .step = args.step,
                       .pairs = args.queries * args.shape.n_heads,
                       .kept = DataOf<float>(args.kept)};
  return Launch(exec, "audit", AuditKernel,
                {.grid = GridFor(p.pairs, kWarps), .block = kWarps * kWarp}, p);
}

}  // namespace nsa::cuda
