// Selected branch on CUDA.
//
// Forward and dq are query-major where a token chooses a large part of the blocks: a tile of 21
// tokens · 6 heads iterates over the union of its tokens' blocks, with a mask of the tokens that
// chose each block (attention_tile.cuh). Where a token chooses few of many blocks, forward and dq
// are key-major (selected/by_key.cuh). dk and dv are always key-major and use the same inverse
// lists (selected/lists.cuh): 64 keys gather exactly the rows that chose them, so no work is wasted
// however few blocks a token chooses. Long lists (block 0 is chosen by every token) are cut into
// segments with fp32 partial sums. On Hopper, where dq is key-major too, one kernel computes all
// three gradients (selected/one_pass.cuh).
#include "kernels/nsa/branch/selected/one_pass.cuh"
#include "kernels/nsa/branch/selected_attention.h"

namespace nsa::cuda {
namespace {

// Grid: 64-key parts of a block · segments · B·G · S_sel, parts fastest. Selection blocks vary
// slowest, so that the long lists of the first blocks start first.
template <int kD>
__global__ void __launch_bounds__(kDkvThreads, DkvBlocks(kD, 1))
    SelectedDkvKernel(Begin begin, AttentionProblem p, const __grid_constant__ AttentionBoxes boxes,
                      AttentionGradients grad, SelectedLists lists, int parts, int max_segments,
                      int partials, float* partial) {
  // Beside a long list an A100 has room for one thread block less than it has registers for.
  static_assert(kFit<DkvBlocks(kD, 1) - ((kD == 64 || kD == 192) && !kHasWgmma ? 1 : 0),
                     DkvSharedBytes(kD, kLargeTiles<kD>, 1, kLongestSegment)>);
  begin.WaitForPrevious();
  int index = blockIdx.x;
  const int part = index % parts;
  index /= parts;
  const int segment = index % max_segments;
  index /= max_segments;
  const int pairs = p.batch * p.groups;
  const int bg = index % pairs, block = index / pairs;
  const int slot = bg * p.sel_blocks + block;
  const int size = Uniform(lists.sizes[slot]);
  if (segment > 0 && segment * lists.segment >= size) return;
  DkvWork work{};
  work.begin = block * p.l_sel + part * kKeyTile;
  work.end = min(min(work.begin + kKeyTile, (block + 1) * p.l_sel), p.seq_len);
  if (work.begin >= work.end) return;
  work.count = min(lists.segment, size - segment * lists.segment);
  extern __shared__ __align__(kTileAlignment) uint8_t shared[];
  int* list = reinterpret_cast<int*>(shared + DkvSharedBytes(kD, kLargeTiles<kD>, 1, 0));
  const int* entries = lists.entries + int64_t{1} * bg * lists.capacity + lists.begins[slot] +
                       segment * lists.segment;
  for (int i = threadIdx.x; i < work.count; i += blockDim.x) list[i] = TokenOf(entries[i]);
  __syncthreads();
  work.list = list;
  if (lists.segments[slot] >= 0) {
    const int64_t number = int64_t{1} * bg * partials + lists.segments[slot] + segment;
    work.partial = partial + (number * parts + part) * kKeyTile * kPartialRow<kD>;
  }
  WalkRows<kSel, kD, 1>(p, boxes, grad, work, bg / p.groups, bg % p.groups, shared);
}

// Adds the segments of the blocks that have several. Grid: slices · parts · S_sel · B·G.
template <int kD>
__global__ void AddListSegmentsKernel(Begin start, AttentionProblem p, AttentionGradients grad,
                                      SelectedLists lists, int parts, int partials,
                                      const float* partial) {
  start.WaitForPrevious();
  constexpr int64_t kPart = int64_t{kKeyTile} * kPartialRow<kD>;
  const int slice = blockIdx.x % kAddSlices, index = blockIdx.x / kAddSlices;
  const int part = index % parts, slot = index / parts;
  if (lists.segments[slot] < 0) return;
  const int bg = slot / p.sel_blocks, block = slot % p.sel_blocks;
  const int begin = block * p.l_sel + part * kKeyTile;
  const int end = min(min(begin + kKeyTile, (block + 1) * p.l_sel), p.seq_len);
  const int64_t first = int64_t{1} * bg * partials + lists.segments[slot];
  AddPartials<kD>(p, grad, bg / p.groups, bg % p.groups, begin, end,
                  partial + (first * parts + part) * kPart, parts * kPart,
                  CeilDiv(lists.sizes[slot], lists.segment), slice);
}

// Number of keys of one (token, group) row, counted from its blocks.
__device__ int KeysOfRow(const AttentionProblem& p, int64_t row) {
  const int t = static_cast<int>(row / p.groups % p.seq_len);
  const int b = static_cast<int>(row / p.groups / p.seq_len);
  const KeyRange seen = KeysOf<kSel>(p, b, t);
  int keys = 0;
#pragma unroll 16  // so many loads under way
  for (int i = 0; i < p.n_sel; ++i) {
    const int block = p.blocks[row * p.n_sel + i];
    const KeyRange part = Intersection(seen, SelectionBlock(p, block));
    if (block >= 0) keys += max(0, part.end - part.begin);
  }
  return keys;
}

using Count = unsigned long long;

// The most keys of a row, in the upper half, and how many rows have so many.
__device__ Count Most(Count a, Count b) {
  if (a >> 32 == b >> 32) return a + (b & 0xffffffffu);
  return a > b ? a : b;
}
__device__ void AddMost(Count* to, Count most) {
  Count found = *static_cast<volatile Count*>(to), expected;
  do {
    expected = found;
    found = atomicCAS(to, expected, Most(expected, most));
  } while (found != expected);
}

// stats = {sum, max, rows, rows at the maximum}, 0 before. While thread blocks add, stats[2] counts
// those that are done and stats[3] is their Most(). Integers: the order does not matter.
constexpr int kStatsThreads = 1024;
constexpr int kStatsBlocks = 32;  // at most: each waits for the others in AddMost()
__global__ void __launch_bounds__(kStatsThreads)
    SelectionStatsKernel(Begin begin, AttentionProblem p, Count* stats) {
  __shared__ Count sums[kStatsThreads / kWarp], mosts[kStatsThreads / kWarp];
  begin.WaitForPrevious();
  const int64_t rows = int64_t{1} * p.batch * p.seq_len * p.groups;
  Count sum = 0, most = 0;
  for (int64_t row = int64_t{1} * blockIdx.x * kStatsThreads + threadIdx.x; row < rows;
       row += int64_t{1} * gridDim.x * kStatsThreads) {
    const auto keys = static_cast<Count>(KeysOfRow(p, row));
    sum += keys;
    most = Most(most, keys << 32 | 1);
  }
  for (int offset = 16; offset > 0; offset >>= 1) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    most = Most(most, __shfl_xor_sync(0xffffffffu, most, offset));
  }
  if (threadIdx.x % kWarp == 0) {
    sums[threadIdx.x / kWarp] = sum;
    mosts[threadIdx.x / kWarp] = most;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kStatsThreads / kWarp; ++warp) {
      sum += sums[warp];
      most = Most(most, mosts[warp]);
    }
    atomicAdd(&stats[0], sum);
    AddMost(&stats[3], most);
  }
  if (!IsLastBlock(reinterpret_cast<unsigned int*>(&stats[2])) || threadIdx.x != 0) return;
  most = __ldcg(&stats[3]);
  stats[1] = most >> 32;
  stats[2] = static_cast<Count>(rows);
  stats[3] = most & 0xffffffffu;
}

// Counts the keys of every row of the choice.
absl::Status CountSelection(const Exec& exec, const BranchArgs& args, const AttentionProblem& p) {
  auto* stats = DataOf<Count>(args.selection_stats);
  if (!args.statistics_zeroed) {
    NSA_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(stats, 0, 4 * sizeof(Count), StreamOf(exec)), "selection_stats"));
  }
  const int64_t rows = int64_t{1} * p.batch * p.seq_len * p.groups;
  return Launch(exec, "selection_stats", SelectionStatsKernel,
                {.grid = std::min<unsigned int>(GridFor(rows, kStatsThreads), kStatsBlocks),
                 .block = kStatsThreads},
                p, stats);
}

// The workspace, laid out.
struct Workspace {
  SelectedScratch plan;
  SelectedLists lists;
  ByKey by_key;
  float2* stats;
  float* sums;
};
Workspace LayOut(const NsaShape& s, void* memory) {
  Workspace work{};
  const SelectedScratch& plan = work.plan = PlanSelectedScratch(s);
  auto at = [&]<class T>(T** what, int64_t offset) {
    *what = reinterpret_cast<T*>(static_cast<uint8_t*>(memory) + offset);
  };
  SelectedLists& lists = work.lists;
  lists.chunks = plan.chunks;
  lists.capacity = s.seq_len * s.n_sel;
  lists.segment = plan.segment;
  at(&lists.counts, plan.counts);
  at(&lists.sizes, plan.sizes);
  at(&lists.begins, plan.begins);
  at(&lists.segments, plan.segments);
  at(&lists.entries, plan.entries);
  at(&work.stats, plan.stats);
  at(&work.sums, plan.sums);
  if (!plan.by_key) return work;
  ByKey& by_key = work.by_key;
  by_key.chunks = plan.range_chunks;
  by_key.ranges = plan.ranges;
  by_key.parts = plan.parts;
  by_key.capacity = plan.items;
  by_key.splits = plan.splits;
  by_key.slots = plan.slots;
  at(&by_key.counts, plan.item_counts);
  at(&by_key.items, plan.item_list);
  at(&by_key.several, plan.split_list);
  at(&by_key.rows, plan.rows);
  at(&by_key.sums, plan.row_sums);
  at(&by_key.key_sums, plan.key_sums);
  at(&by_key.item_sums, plan.item_sums);
  return work;
}

absl::Status BuildLists(const Exec& exec, const AttentionProblem& p, const SelectedLists& lists) {
  const int pairs = p.batch * p.groups;
  const int shared = 4 * p.sel_blocks;
  const LaunchShape by_chunk = {
      .grid = Blocks(lists.chunks * pairs), .block = 128, .shared = shared};
  NSA_RETURN_IF_ERROR(Launch(exec, "selected_lists", CountListsKernel, by_chunk, p, lists));
  NSA_RETURN_IF_ERROR(Launch(
      exec, "selected_lists", RankListsKernel,
      {.grid = Blocks(CeilDiv(p.sel_blocks, kWarp) * pairs), .block = dim3(kWarp, kRankSlices)}, p,
      lists));
  NSA_RETURN_IF_ERROR(Launch(exec, "selected_lists", OffsetListsKernel,
                             {.grid = Blocks(pairs), .block = kWarp}, p, lists));
  return Launch(exec, "selected_lists", FillListsKernel, by_chunk, p, lists);
}

// dk and dv by the key-major kernel, on `exec`. The lists must have been built.
absl::Status LaunchSelectedDkv(const Exec& exec, const NsaShape& shape, const AttentionProblem& p,
                               const AttentionGradients& grad, const Workspace& work,
                               const char* what) {
  const SelectedScratch& plan = work.plan;
  const int slots = p.sel_blocks * p.batch * p.groups;
  return ForHeadWidth(shape, [&](auto width) -> absl::Status {
    constexpr int kD = decltype(width)::value;
    auto* kernel = SelectedDkvKernel<kD>;
    NSA_ASSIGN_OR_RETURN(const bool large_tiles, LargeTiles(kD));
    NSA_ASSIGN_OR_RETURN(const AttentionBoxes boxes, BoxesOf(p, grad.d_o, 1));
    const int shared = DkvSharedBytes(kD, large_tiles, 1, plan.segment);
    NSA_RETURN_IF_ERROR(Launch(exec, what, kernel,
                               {.grid = Blocks(plan.parts * plan.max_segments * slots),
                                .block = kDkvThreads,
                                .shared = shared,
                                .next_may_start = false},
                               p, boxes, grad, work.lists, plan.parts, plan.max_segments,
                               plan.partials, work.sums));
    if (plan.partials == 0) return absl::OkStatus();
    return Launch(exec, what, AddListSegmentsKernel<kD>,
                  {.grid = Blocks(kAddSlices * plan.parts * slots), .block = 256}, p, grad,
                  work.lists, plan.parts, plan.partials, work.sums);
  });
}

absl::Status ForwardByKey(const Exec& exec, const BranchArgs& args, const AttentionProblem& p) {
  NSA_ASSIGN_OR_RETURN(void* const memory, WorkspaceOf(exec, PlanSelectedScratch(args.shape).bytes,
                                                       "selected_attention"));
  const Workspace work = LayOut(args.shape, memory);
  NSA_RETURN_IF_ERROR(ZeroKeysRead(exec, args, "selected_attention"));
  NSA_RETURN_IF_ERROR(BuildLists(exec, p, work.lists));
  return RunByKey<false>(exec, args.shape, p, OutputsOf(args), {}, work.lists, work.by_key,
                         "selected_attention");
}

}  // namespace

absl::Status SelectedAttention(const Exec& exec, const BranchArgs& args) {
  AttentionProblem p = ProblemOf(args, args.shape.seq_len);
  p.blocks = DataOf<int>(args.blocks);
  const bool counts = args.selection_stats.wanted();
  if (counts) NSA_RETURN_IF_ERROR(Fork(exec));  // they need the choice alone
  NSA_RETURN_IF_ERROR(PlanSelectedScratch(args.shape).by_key
                          ? ForwardByKey(exec, args, p)
                          : LaunchForward<kSel>(exec, args, p, "selected_attention"));
  return counts ? CountSelection(OnSide(exec), args, p) : absl::OkStatus();
}

absl::Status SelectedAttentionBackward(const Exec& exec, const BranchBackwardArgs& args) {
  constexpr const char* kWhat = "selected_attention_backward";
  AttentionProblem p = ProblemOf(args, args.shape.seq_len);
  p.blocks = DataOf<int>(args.blocks);
  NSA_ASSIGN_OR_RETURN(void* const memory,
                       WorkspaceOf(exec, PlanSelectedScratch(args.shape).bytes, kWhat));
  const Workspace work = LayOut(args.shape, memory);
  NSA_ASSIGN_OR_RETURN(const float2* const stats, StatsOf(exec, args, p, work.stats, kWhat));
  const AttentionGradients grad = GradientsOf(args, stats);
  const Exec side = OnSide(exec);
  if (work.plan.by_key) {
    NSA_RETURN_IF_ERROR(BuildLists(exec, p, work.lists));
    NSA_ASSIGN_OR_RETURN(const bool one_pass, OnePass(args.shape));
    if (one_pass) {
      return RunOnePass(exec, args.shape, p, grad, work.lists, work.by_key, kWhat);
    }
    // Both streams need the lists, so they are built before the fork.
    NSA_RETURN_IF_ERROR(Fork(exec));
    NSA_RETURN_IF_ERROR(
        RunByKey<true>(exec, args.shape, p, {}, grad, work.lists, work.by_key, kWhat));
  } else {
    if (!args.stats.wanted()) NSA_RETURN_IF_ERROR(Fork(exec));
    NSA_RETURN_IF_ERROR(LaunchDq<kSel>(exec, args, p, grad, kWhat));
    NSA_RETURN_IF_ERROR(BuildLists(side, p, work.lists));
  }
  return LaunchSelectedDkv(side, args.shape, p, grad, work, kWhat);
}

}  // namespace nsa::cuda
