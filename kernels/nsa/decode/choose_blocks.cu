// Chooses the selection blocks of new rows, a thread block for each row and group: its threads
// compute the scores of the selection blocks, then one warp keeps the best.
#include "kernels/nsa/decode/choose_blocks.cuh"

namespace nsa::cuda {
namespace {

constexpr int kMostThreads = 1024;

__global__ void __launch_bounds__(kMostThreads)
    ChooseKernel(Begin begin, const __grid_constant__ DecodeProblem p) {
  extern __shared__ float scores[];  // of the choice's others
  __shared__ float log_sums[kMostHeads];
  begin.WaitForPrevious();
  const int g = blockIdx.x, row = blockIdx.y, t = p.PositionOf(row), start = p.DocStart(row);
  const Choice choice(p, t, start);
  if (choice.needed) {
    for (int a = threadIdx.x / kWarp; a < p.h; a += static_cast<int>(blockDim.x) / kWarp) {
      const float log_sum = LogSum(p, row, g * p.h + a);
      if (threadIdx.x % kWarp == 0) log_sums[a] = log_sum;
    }
    __syncthreads();
    const KeyRange visible = BranchRule<kCmp>::Keys(p, t, start);
    for (int i = threadIdx.x; i < choice.others; i += static_cast<int>(blockDim.x)) {
      scores[i] = ScoreOf(p, visible, choice.candidates.begin + 1 + i, [&](int key) {
        KeyScores<kMostHeads> of_key;
        of_key.Load(p, row, g * p.h, key);
        return of_key.Share(p, log_sums);
      });
    }
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  choice.Make(p, scores, p.blocks + (int64_t{row} * p.groups + g) * p.n_sel);
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
