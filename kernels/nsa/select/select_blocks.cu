// Block selection on CUDA: scores and choice in one kernel, so that neither an [S, S_cmp] nor an
// [S, S_sel] matrix is written to memory unless `scores` is given.
//
// A thread block processes 16 tokens of a group and iterates over the compressed keys that they
// see, 128 at a time, 32 for each of its four warps. A warp keeps its keys as fragments in
// registers and loops over the heads: logits on the matrix unit, probabilities from the compressed
// branch's lse, added up in registers in the order of the heads. The sums of the 128 keys are
// collected in shared memory, where each (token, selection block) pair adds its share of them in
// ascending order. Blocks that no later key overlaps are offered, 32 at a time, to the token's list
// of best blocks, which is sorted. So neither shared memory nor registers grow with S. Tiles whose
// tokens have at most n candidates skip all of this: at S = 2048 and n·l' = 1024 half of the tiles
// do. The rest is limited by exponentials: 16 tokens · h heads · 128 keys per round.
#include "kernels/nsa/branch/attention_launch.cuh"
#include "kernels/nsa/select/any_blocks.cuh"
#include "kernels/nsa/select/select_blocks.h"
#include "kernels/nsa/select/whole_blocks.cuh"

namespace nsa::cuda {
namespace {

// The tile of this thread block. The last tiles of a sequence, which see the most keys, come first.
__device__ __forceinline__ SelectTile TileOf(const AttentionProblem& p, int tiles_per_sequence) {
  SelectTile tile{};
  const int bg = blockIdx.x / tiles_per_sequence;
  tile.b = bg / p.groups, tile.g = bg % p.groups;
  tile.t0 = (tiles_per_sequence - 1 - blockIdx.x % tiles_per_sequence) * kTokens;
  tile.tokens = min(kTokens, p.seq_len - tile.t0);
  // Both ends of a token's keys increase with it.
  const KeyRange first = KeysOf<kCmp>(p, tile.b, tile.t0);
  const KeyRange last = KeysOf<kCmp>(p, tile.b, tile.t0 + tile.tokens - 1);
  tile.first = first.begin, tile.last = last.end;
  tile.common = {last.begin, first.end};
  return tile;
}

// Loads what all rounds need: the queries and their lse.
template <int kD>
__device__ __forceinline__ void BeginScores(const SelectShared<kD>& shared,
                                            const AttentionProblem& p, const SelectTile& tile,
                                            const SelectOutputs& out, int warp, int lane) {
  if (out.scores != nullptr) {
    // Blocks that no visible key overlaps keep this 0.
    for (int i = threadIdx.x; i < tile.tokens * p.sel_blocks; i += blockDim.x) {
      out.scores[tile.Row(p, i / p.sel_blocks) * p.sel_blocks + i % p.sel_blocks] = 0;
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

// kKeys: l' / d where WholeBlocks can be used, else 0.
template <int kD, int kKeys>
struct ChoiceOf {
  using Type = WholeBlocks<kD, kKeys>;
};
template <int kD>
struct ChoiceOf<kD, 0> {
  using Type = AnyBlocks<kD>;
};

// Thread blocks on a multiprocessor that registers are divided for. Shared memory has room for them
// with 6 heads in a group and 16 chosen blocks, but with keys of 192 only in sm_90a code; 16 heads
// of 64 leave room for two on an A100 and three on Hopper.
template <int kD>
constexpr int kSelectBlocks = kD > 64 ? 2 : 4;

template <int kD, int kKeys>
__global__ void __launch_bounds__(kWarps* kWarp, kSelectBlocks<kD>)
    SelectBlocksKernel(Begin begin, AttentionProblem p, SelectOutputs out, int tiles_per_sequence,
                       SelectSizes sizes) {
  constexpr int kBytes = SelectShared<kD>::Bytes(6, {.listed = 16 - kForced});
  static_assert(kFit<(kD > 128 && !kHasWgmma ? 1 : kSelectBlocks<kD>), kBytes>);
  begin.WaitForPrevious();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const SelectTile tile = TileOf(p, tiles_per_sequence);
  const Candidates candidates(p, tile, lane);
  typename ChoiceOf<kD, kKeys>::Type choice;
  if (out.scores != nullptr || !candidates.AllFit(p.n_sel)) {
    extern __shared__ __align__(128) uint8_t memory[];
    const SelectShared<kD> shared(memory, p.h, sizes);
    BeginScores<kD>(shared, p, tile, out, warp, lane);
    choice.Run(shared, p, tile, candidates, out, sizes, warp, lane);
  }
#pragma unroll(kKeys > 0 ? 1 : kTokensOfWarp)
  for (int i = 0; i < kTokensOfWarp; ++i) {
    const int token = warp * kTokensOfWarp + i;
    if (token >= tile.tokens) break;
    const Ends ends = candidates.Of(token);
    choice.Best(i).Store(ends.first, ends.current, p.n_sel,
                         out.blocks + tile.Row(p, token) * p.n_sel, lane);
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
  const int tiles = CeilDiv(shape.seq_len, kTokens);
  const auto launch = [&](auto width, auto keys) -> absl::Status {
    constexpr int kD = decltype(width)::value, kKeys = decltype(keys)::value;
    const SelectSizes sizes = ChoiceOf<kD, kKeys>::Type::Sizes(shape);
    return Launch(exec, "select_blocks", SelectBlocksKernel<kD, kKeys>,
                  {.grid = GridFor(int64_t{1} * tiles * p.batch * p.groups, 1),
                   .block = kWarps * kWarp,
                   .shared = SelectShared<kD>::Bytes(p.h, sizes),
                   .next_may_start = false},
                  p, out, tiles, sizes);
  };
  // The kernel is chosen by dk alone; v is not read.
  NsaShape width = shape;
  width.d_v = width.d_k;
  return ForHeadWidth(width, [&](auto d) -> absl::Status {
    constexpr int kD = decltype(d)::value;
    // 16 heads where d = l' and l = 8 l', which need the most, and with the longest lists.
    static_assert(SelectShared<kD>::Bytes(
                      16, {.capacity = kRoundKeys + 8 + 2, .keys_of_block = 8}) <= kSharedOfA100);
    static_assert(SelectShared<kD>::Bytes(16, {.listed = 2 * kWarp - kForced}) <= kSharedOfA100);
    if (shape.l == 2 * shape.d && shape.l_sel == 4 * shape.d) {
      return launch(d, std::integral_constant<int, 4>());
    }
    if (shape.l == 2 * shape.d && shape.l_sel == 8 * shape.d) {
      return launch(d, std::integral_constant<int, 8>());
    }
    return launch(d, std::integral_constant<int, 0>());
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
