// The selection blocks of new rows, by the rules of kernels/nsa/select/select_blocks.h, from the
// scores of the compressed keys that attend_rows.cu has stored. A thread block has one row and
// group: its threads compute the scores of the selection blocks, then one warp keeps the best.
#include "kernels/nsa/decode/problem.cuh"
#include "kernels/nsa/select/best_blocks.cuh"

namespace nsa::cuda {
namespace {

constexpr int kMostThreads = 1024;

// log2 Σ 2^score of the compressed keys that head `head` of a row sees, on all lanes of a warp;
// +inf if it sees none.
__device__ float LogSum(const DecodeProblem& p, int row, int head) {
  const int lane = threadIdx.x % kWarp;
  float max = -INFINITY, sum = 0;
  for (int part = lane; part < p.parts[kCmp]; part += kWarp) {
    max = fmaxf(max, p.stats[p.StatsAt(p.first_part[kCmp] + part, row, head)].x);
  }
  max = WarpMax(max);
  if (max == -INFINITY) return INFINITY;
  for (int part = lane; part < p.parts[kCmp]; part += kWarp) {
    const float2 stats = p.stats[p.StatsAt(p.first_part[kCmp] + part, row, head)];
    sum += stats.y * Exp2(stats.x - max);
  }
  return max + log2f(WarpSum(sum));
}

// Σ_i p_i · |compression block i ∩ selection block j| / l, p_i summed over the heads of the group.
__device__ float ScoreOf(const DecodeProblem& p, KeyRange visible, int row, int head0,
                         const float* log_sums, int j) {
  const KeyRange tokens = SelectionBlock(p, j);
  const int after_miss = tokens.begin - p.l + p.d;  // the first block that ends in j begins here
  const KeyRange overlapping = {after_miss <= 0 ? 0 : after_miss / p.d,
                                (tokens.end + p.d - 1) / p.d};
  const KeyRange keys = Intersection(visible, overlapping);
  float score = 0;
  for (int i = keys.begin; i < keys.end; ++i) {
    const KeyRange block = {i * p.d, i * p.d + p.l};
    const KeyRange common = Intersection(block, tokens);
    if (common.end <= common.begin) continue;
    const float* const of_key = p.scores + (int64_t{row} * p.heads + head0) * p.score_step + i;
    float of_head[kMostHeads], share = 0;
#pragma unroll  // all loads under way
    for (int a = 0; a < kMostHeads; ++a) of_head[a] = a < p.h ? of_key[a * p.score_step] : 0.0f;
#pragma unroll
    for (int a = 0; a < kMostHeads; ++a) share += a < p.h ? Exp2(of_head[a] - log_sums[a]) : 0.0f;
    score += share * static_cast<float>(common.end - common.begin) / static_cast<float>(p.l);
  }
  return score;
}

__global__ void __launch_bounds__(kMostThreads)
    ChooseKernel(Begin begin, const __grid_constant__ DecodeProblem p) {
  extern __shared__ float scores[];  // of blocks candidates.begin + 1 … current − 2
  __shared__ float log_sums[kMostHeads];
  begin.WaitForPrevious();
  const int g = blockIdx.x, row = blockIdx.y, t = p.PositionOf(row), start = p.DocStart(row);
  const KeyRange candidates = CandidateBlocks(p, t, start);
  const int others = max(0, candidates.end - candidates.begin - kForced);
  const bool choice = candidates.end - candidates.begin > p.n_sel;
  if (choice) {
    for (int a = threadIdx.x / kWarp; a < p.h; a += static_cast<int>(blockDim.x) / kWarp) {
      const float log_sum = LogSum(p, row, g * p.h + a);
      if (threadIdx.x % kWarp == 0) log_sums[a] = log_sum;
    }
    __syncthreads();
    const KeyRange visible = BranchRule<kCmp>::Keys(p, t, start);
    for (int i = threadIdx.x; i < others; i += static_cast<int>(blockDim.x)) {
      scores[i] = ScoreOf(p, visible, row, g * p.h, log_sums, candidates.begin + 1 + i);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const int lane = threadIdx.x;
  BestBlocks best;
  for (int base = 0; choice && base < others; base += kWarp) {
    const int i = base + lane;
    const uint64_t key =
        i < others ? BestBlocks::KeyOf(scores[i], candidates.begin + 1 + i) : uint64_t{0};
    best.Offer(key, p.n_sel - kForced, lane);
  }
  best.Store(candidates.begin, candidates.end - 1, p.n_sel,
             p.blocks + (int64_t{row} * p.groups + g) * p.n_sel, lane);
}

}  // namespace

absl::Status ChooseCachedBlocks(const Exec& exec, const DecodeProblem& p) {
  const int blocks = (p.tokens - 1) / p.l_sel + 1;
  return Launch(
      exec, "choose_cached_blocks", ChooseKernel,
      {.grid = dim3(static_cast<unsigned int>(p.groups), static_cast<unsigned int>(p.rows)),
       .block = static_cast<unsigned int>(std::clamp(blocks / kWarp * kWarp, 256, kMostThreads)),
       .shared = blocks * static_cast<int>(sizeof(float))},
      p);
}

}  // namespace nsa::cuda
