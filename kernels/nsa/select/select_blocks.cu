// Block selection on CUDA: scores and choice in one kernel, so that neither an [S, S_cmp] nor an
// [S, S_sel] matrix is written to memory unless `scores` is given.
//
// A thread block processes 16 tokens of a group and iterates over the compressed keys that they
// see, 128 at a time, 32 for each of its four warps. A warp keeps its keys as fragments in
// registers and loops over the heads: logits on the matrix unit, probabilities from the compressed
// branch's lse, added up in registers in the order of the heads. The sums of the 128 keys are
// collected in shared memory, where each (token, selection block) pair adds its share of them in
// ascending order. Blocks that no later key overlaps are offered, 32 at a time, to the token's list
// of best blocks, which a warp keeps sorted across its lanes. So neither shared memory nor
// registers grow with S. Tiles whose tokens have at most n candidates skip all of this: at S = 2048
// and n·l' = 1024 half of the tiles do. The rest is limited by exponentials: 16 tokens · h heads ·
// 128 keys per round.
#include "kernels/nsa/branch/attention_launch.cuh"
#include "kernels/nsa/select/select_blocks.h"
#include "kernels/nsa/select/select_tile.cuh"

namespace nsa::cuda {
namespace {

// The tile of this thread block. The last tiles of a sequence, which see the most keys, come first.
__device__ __forceinline__ SelectTile TileOf(const AttentionProblem& p, int tiles_per_sequence) {
  SelectTile tile{};
  const int bg = blockIdx.x / tiles_per_sequence;
  tile.b = bg / p.groups, tile.g = bg % p.groups;
  tile.t0 = (tiles_per_sequence - 1 - blockIdx.x % tiles_per_sequence) * kTokens;
  tile.tokens = min(kTokens, p.seq_len - tile.t0);
  tile.first = KeysOf<kCmp>(p, tile.b, tile.t0).begin;
  tile.last = KeysOf<kCmp>(p, tile.b, tile.t0 + tile.tokens - 1).end;
  return tile;
}

// Whether every token of the tile has at most n candidates, so that no scores are needed.
__device__ __forceinline__ bool AllFit(const AttentionProblem& p, const SelectTile& tile) {
  bool all_fit = true;
  for (int token = 0; token < tile.tokens; ++token) {
    const int t = tile.t0 + token;
    all_fit = all_fit && t / p.l_sel - FirstBlock(p, tile.b, t) + 1 <= p.n_sel;
  }
  return all_fit;
}

// Loads what all rounds need: the shares, the queries and their lse.
template <int kD>
__device__ __forceinline__ void BeginScores(const SelectShared<kD>& shared,
                                            const AttentionProblem& p, const SelectTile& tile,
                                            const SelectOutputs& out, int warp, int lane) {
  FillShares(p, shared.shares);
  if (out.scores != nullptr) {
    // Blocks that no visible key overlaps keep this 0.
    const int64_t row = (int64_t{1} * tile.b * p.seq_len + tile.t0) * p.groups + tile.g;
    for (int i = threadIdx.x; i < tile.tokens * p.sel_blocks; i += blockDim.x) {
      out.scores[(row + i / p.sel_blocks * p.groups) * p.sel_blocks + i % p.sel_blocks] = 0;
    }
  }
  LoadQueries<kD>(shared, p, tile);
  CommitCopies();
  if (out.lse == nullptr) {
    WaitCopies<0>();
    __syncthreads();
    FindDenominators<kD>(shared, p, tile, warp, lane);
  } else {
    LoadLse<kD>(shared, p, tile, out.lse);
  }
}

// Scores the tile's blocks round by round and offers them to `choice`.
template <int kD>
__device__ __forceinline__ void ScoreBlocks(const SelectShared<kD>& shared,
                                            const AttentionProblem& p, const SelectTile& tile,
                                            const SelectOutputs& out, int capacity,
                                            WarpChoice& choice, int warp, int lane) {
  bf16* const keys = shared.k + warp * kWarpKeys * kD;
  const LaneTokens tokens = LaneTokensOf(p, tile, lane);
  const int rounds = tile.rounds();
  if (rounds > 0) LoadWarpKeys<kD>(keys, p, tile, tile.first + warp * kWarpKeys, lane);
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();

  ScoredBlocks blocks;
  int offered = tile.first * p.d / p.l_sel;  // blocks before it are final and have been offered
  for (int round = 0; round < rounds; ++round) {
    const int begin = tile.first + round * kRoundKeys, end = min(begin + kRoundKeys, tile.last);
    KeyFragments<kD> fragments;
    fragments.Read(keys, lane);
    __syncwarp();
    // The warp's next keys are copied while these are multiplied.
    if (round + 1 < rounds) {
      LoadWarpKeys<kD>(keys, p, tile, begin + kRoundKeys + warp * kWarpKeys, lane);
    }
    CommitCopies();
    SumHeads<kD>(shared, p, fragments, tokens, begin + warp * kWarpKeys, warp, lane);
    __syncthreads();
    blocks = AddScores(p, begin, end, shared.sums, shared.shares, tile.tokens, capacity, blocks,
                       shared.scores);
    WaitCopies<0>();
    __syncthreads();
    const int final_blocks = end * p.d / p.l_sel;
    choice.Offer(p, tile, blocks, offered, final_blocks, capacity, out, warp, lane);
    offered = final_blocks;
  }
  // The blocks of the last keys, and the blocks that no key overlaps.
  const int last_block = (tile.t0 + tile.tokens - 1) / p.l_sel;
  const int to = out.scores != nullptr ? max(last_block, blocks.end) : last_block;
  choice.Offer(p, tile, blocks, offered, to, capacity, out, warp, lane);
}

template <int kD>
__global__ void __launch_bounds__(kWarps* kWarp, kD > 64 ? 2 : 4)
    SelectBlocksKernel(Begin begin, AttentionProblem p, SelectOutputs out, int tiles_per_sequence,
                       int capacity) {
  begin.WaitForPrevious();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const SelectTile tile = TileOf(p, tiles_per_sequence);
  WarpChoice choice;
  if (out.scores != nullptr || !AllFit(p, tile)) {
    extern __shared__ __align__(128) uint8_t memory[];
    const SelectShared<kD> shared(memory, p.h, capacity);
    BeginScores<kD>(shared, p, tile, out, warp, lane);
    ScoreBlocks<kD>(shared, p, tile, out, capacity, choice, warp, lane);
  }
#pragma unroll
  for (int i = 0; i < kTokensOfWarp; ++i) {
    const int token = warp + i * kWarps, t = tile.t0 + token;
    if (token >= tile.tokens) break;
    const int64_t row = (int64_t{1} * tile.b * p.seq_len + t) * p.groups + tile.g;
    choice.best[i].Store(FirstBlock(p, tile.b, t), t / p.l_sel, p.n_sel, out.blocks + row * p.n_sel,
                         lane);
  }
}

// The choice alone, one warp per (token, group) row.
__global__ void ChooseBlocksKernel(Begin begin, AttentionProblem p, const float* scores,
                                   int* blocks) {
  begin.WaitForPrevious();
  const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  const int64_t row = int64_t{1} * blockIdx.x * warps + threadIdx.x / kWarp;
  if (row >= int64_t{1} * p.batch * p.seq_len * p.groups) return;
  const int t = static_cast<int>(row / p.groups % p.seq_len);
  const int b = static_cast<int>(row / p.groups / p.seq_len);
  const int first = FirstBlock(p, b, t), current = t / p.l_sel;
  BestBlocks best;
  for (int block = first + 1 + lane; block - lane < current - 1; block += kWarp) {
    const uint64_t key =
        block < current - 1 ? BestBlocks::KeyOf(scores[row * p.sel_blocks + block], block) : 0;
    best.Offer(key, p.n_sel - kForced, lane);
  }
  best.Store(first, current, p.n_sel, blocks + row * p.n_sel, lane);
}

}  // namespace

absl::Status SelectBlocks(const Exec& exec, const SelectBlocksArgs& args) {
  const NsaShape& shape = args.shape;
  struct {
    const NsaShape& shape;
    float scale;
    ConstTensor q, k, v, doc_start;
  } common{shape, args.scale, args.q, args.k, {}, args.doc_start};
  const AttentionProblem p = ProblemOf(common, shape.cmp_blocks());
  const SelectOutputs out{DataOf<float>(args.lse), DataOf<int>(args.blocks),
                          DataOf<float>(args.scores)};
  const int tiles = CeilDiv(shape.seq_len, kTokens), capacity = ScoreCapacity(shape);
  // The kernel is chosen by dk alone; v is not read.
  NsaShape width = shape;
  width.d_v = width.d_k;
  return ForHeadWidth(width, [&](auto d) -> absl::Status {
    constexpr int kD = decltype(d)::value;
    auto* kernel = SelectBlocksKernel<kD>;
    // 16 heads where d = l' and l = 8 l', which need the most.
    static_assert(SelectShared<kD>::Bytes(16, kRoundKeys + 8 + 2, 8) <= kSharedOfA100);
    const int bytes =
        SelectShared<kD>::Bytes(p.h, capacity, KeysOfBlock(shape.l, shape.d, shape.l_sel));
    return Launch(exec, "select_blocks", kernel,
                  {.grid = GridFor(int64_t{1} * tiles * p.batch * p.groups, 1),
                   .block = kWarps * kWarp,
                   .shared = bytes,
                   .next_may_start = false},
                  p, out, tiles, capacity);
  });
}

absl::Status ChooseBlocks(const Exec& exec, const ChooseBlocksArgs& args) {
  const NsaShape& shape = args.shape;
  AttentionProblem p{};
  p.batch = shape.batch, p.seq_len = shape.seq_len, p.groups = shape.n_kv_groups;
  p.l_sel = shape.l_sel, p.n_sel = shape.n_sel, p.sel_blocks = shape.sel_blocks();
  p.doc_start = DataOf<int>(args.doc_start);
  const int64_t rows = int64_t{1} * shape.batch * shape.seq_len * shape.n_kv_groups;
  return Launch(exec, "choose_blocks", ChooseBlocksKernel,
                {.grid = GridFor(rows, kWarps), .block = kWarps * kWarp}, p,
                DataOf<float>(args.scores), DataOf<int>(args.blocks));
}

}  // namespace nsa::cuda
