// Selected branch on CUDA.
//
// Forward and dq are query-major where a token chooses a large part of the blocks: a tile of 21
// tokens · 6 heads iterates over the union of its tokens' blocks, with a mask of the tokens that
// chose each block (attention_tile.cuh). Where a token chooses few of many blocks, forward and dq
// are key-major (selected_by_key.cuh). dk and dv are always key-major and use the same inverse
// lists (selected_lists.cuh): 64 keys gather exactly the rows that chose them, so no work is wasted
// however few blocks a token chooses. Long lists (block 0 is chosen by every token) are cut into
// segments with fp32 partial sums. On Hopper, where dq is key-major too, one kernel computes all
// three gradients (selected_one_pass.cuh).
#include "kernels/nsa/branch/selected_attention.h"
#include "kernels/nsa/branch/selected_one_pass.cuh"

namespace nsa::cuda {
namespace {

// Grid: 64-key parts of a block · segments · B·G · S_sel, parts fastest. Selection blocks vary
// slowest, so that the long lists of the first blocks start first.
template <int kD>
__global__ void __launch_bounds__(kDkvThreads, kD > 64 ? 2 : 3)
    SelectedDkvKernel(AttentionProblem p, AttentionGradients grad, SelectedLists lists, int parts,
                      int max_segments, int partials, float* partial) {
  int index = blockIdx.x;
  const int part = index % parts;
  index /= parts;
  const int segment = index % max_segments;
  index /= max_segments;
  const int pairs = p.batch * p.groups;
  const int bg = index % pairs, block = index / pairs;
  const int slot = bg * p.sel_blocks + block;
  const int size = lists.sizes[slot];
  if (segment > 0 && segment * lists.segment >= size) return;
  DkvWork work{};
  work.begin = block * p.l_sel + part * kKeyTile;
  work.end = min(min(work.begin + kKeyTile, (block + 1) * p.l_sel), p.seq_len);
  if (work.begin >= work.end) return;
  work.count = min(lists.segment, size - segment * lists.segment);
  extern __shared__ __align__(kTileAlignment) uint8_t shared[];
  int* list = reinterpret_cast<int*>(shared + DkvSharedBytes<kD>(kLargeTiles<kD>, 1, 0));
  const int* entries = lists.entries + int64_t{1} * bg * lists.capacity + lists.begins[slot] +
                       segment * lists.segment;
  for (int i = threadIdx.x; i < work.count; i += blockDim.x) list[i] = TokenOf(entries[i]);
  __syncthreads();
  work.list = list;
  if (lists.segments[slot] >= 0) {
    const int64_t number = int64_t{1} * bg * partials + lists.segments[slot] + segment;
    work.partial = partial + (number * parts + part) * kKeyTile * kPartialRow<kD>;
  }
  WalkRows<kSel, kD, 1>(p, grad, work, bg / p.groups, bg % p.groups, shared);
}

// Adds the segments of the blocks that have several. Grid: slices · parts · S_sel · B·G.
template <int kD>
__global__ void AddListSegmentsKernel(AttentionProblem p, AttentionGradients grad,
                                      SelectedLists lists, int parts, int partials,
                                      const float* partial) {
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
  for (int i = 0; i < p.n_sel; ++i) {
    const int block = p.blocks[row * p.n_sel + i];
    if (block < 0) break;
    const KeyRange part = Intersection(seen, SelectionBlock(p, block));
    keys += max(0, part.end - part.begin);
  }
  return keys;
}

using Count = unsigned long long;

// stats = {sum, max, rows, rows at the maximum}. Integer atomics: their order does not matter.
__global__ void SelectionSumKernel(AttentionProblem p, Count* stats) {
  const int64_t rows = int64_t{1} * p.batch * p.seq_len * p.groups;
  int most = 0;
  Count sum = 0;
  for (int64_t row = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x; row < rows;
       row += int64_t{1} * gridDim.x * blockDim.x) {
    const int keys = KeysOfRow(p, row);
    most = max(most, keys);
    sum += keys;
  }
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(&stats[0], sum);
    atomicMax(&stats[1], static_cast<Count>(most));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) stats[2] = static_cast<Count>(rows);
}
__global__ void SelectionAtMaxKernel(AttentionProblem p, Count* stats) {
  const int64_t rows = int64_t{1} * p.batch * p.seq_len * p.groups;
  const Count most = stats[1];
  unsigned int count = 0;
  for (int64_t row = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x; row < rows;
       row += int64_t{1} * gridDim.x * blockDim.x) {
    count += static_cast<Count>(KeysOfRow(p, row)) == most;
  }
  count = __reduce_add_sync(0xffffffffu, count);
  if (threadIdx.x % kWarp == 0 && count > 0) atomicAdd(&stats[3], static_cast<Count>(count));
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
  NSA_RETURN_IF_ERROR(AllowShared(CountListsKernel, shared, "selected_lists"));
  NSA_RETURN_IF_ERROR(AllowShared(FillListsKernel, shared, "selected_lists"));
  CountListsKernel<<<lists.chunks * pairs, 128, shared, StreamOf(exec)>>>(p, lists);
  RankListsKernel<<<CeilDiv(p.sel_blocks, kWarp) * pairs, dim3(kWarp, kRankSlices), 0,
                    StreamOf(exec)>>>(p, lists);
  OffsetListsKernel<<<pairs, kWarp, 0, StreamOf(exec)>>>(p, lists);
  FillListsKernel<<<lists.chunks * pairs, 128, shared, StreamOf(exec)>>>(p, lists);
  return CheckLaunch("selected_lists");
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
    const int shared = DkvSharedBytes<kD>(large_tiles, 1, plan.segment);
    NSA_RETURN_IF_ERROR(AllowShared(kernel, shared, what));
    kernel<<<plan.parts * plan.max_segments * slots, kDkvThreads, shared, StreamOf(exec)>>>(
        p, grad, work.lists, plan.parts, plan.max_segments, plan.partials, work.sums);
    NSA_RETURN_IF_ERROR(CheckLaunch(what));
    if (plan.partials > 0) {
      AddListSegmentsKernel<kD><<<kAddSlices * plan.parts * slots, 256, 0, StreamOf(exec)>>>(
          p, grad, work.lists, plan.parts, plan.partials, work.sums);
    }
    return CheckLaunch(what);
  });
}

}  // namespace

absl::Status SelectedAttention(const Exec& exec, const BranchArgs& args) {
  AttentionProblem p = ProblemOf(args, args.shape.seq_len);
  p.blocks = DataOf<int>(args.blocks);
  if (args.selection_stats.wanted()) {
    auto* stats = DataOf<Count>(args.selection_stats);
    NSA_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(stats, 0, 4 * sizeof(Count), StreamOf(exec)), "selection_stats"));
    SelectionSumKernel<<<128, 256, 0, StreamOf(exec)>>>(p, stats);
    SelectionAtMaxKernel<<<128, 256, 0, StreamOf(exec)>>>(p, stats);
    NSA_RETURN_IF_ERROR(CheckLaunch("selection_stats"));
  }
  const SelectedScratch plan = PlanSelectedScratch(args.shape);
  if (!plan.by_key) return LaunchForward<kSel>(exec, args, p, "selected_attention");
  NSA_ASSIGN_OR_RETURN(void* const memory, WorkspaceOf(exec, plan.bytes, "selected_attention"));
  const Workspace work = LayOut(args.shape, memory);
  const AttentionOutputs out = OutputsOf(args);
  NSA_RETURN_IF_ERROR(ZeroKeysRead(exec, out, "selected_attention"));
  NSA_RETURN_IF_ERROR(BuildLists(exec, p, work.lists));
  return RunByKey<false>(exec, args.shape, p, out, {}, work.lists, work.by_key,
                         "selected_attention");
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
