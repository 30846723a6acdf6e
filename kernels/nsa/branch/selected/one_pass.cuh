// Backward of the selected branch by key block in one pass, on Hopper: dq, dk and dv of 64 keys and
// the rows that chose them.
//
// dq by key block (selected/by_key.cuh) and dk, dv (attention_backward.cuh) gather the same rows
// and compute the same weights. One kernel for both needs five products instead of seven and reads
// each row once per choice instead of twice. Keys are the rows of its products: dk and dv stay in a
// thread's accumulators for all rows of an item, and the gradients of the logits pass through
// shared memory, from where a product reads them transposed to get the item's terms of dq.
//
// These terms are partial results of the rows, which CombineByKeyKernel adds. The sums of dk and dv
// continue from one range of tokens to the next in fp32. Where a block has several items in a range
// (block 0 is chosen by every token), AddItemSumsKernel adds their sums in order.
//
// Tile i of at most 64 gathered rows, as in attention_forward.cuh:
//
//   when                     | matrix unit        | warp group
//   -------------------------+--------------------+----------------------------------------------
//   tile i has arrived, all  | Sᵀ = K·Qᵀ          | starts the copies of tile i + 1, plans tile
//     are done with i − 1    |                    |   i + 2
//   Sᵀ is complete           | dPᵀ = V·dOᵀ        | hides keys, Pᵀ = exp2(Sᵀ − lse)
//   dPᵀ is complete          |                    | dSᵀ = Pᵀ ∘ (dPᵀ − delta) of 16 rows
//   dSᵀ of 16 rows is there  | dv += Pᵀ·dO, dk += | dSᵀ of the next 16 rows, each also written to
//                            |   dSᵀ·Q of them    |   shared memory; then all meet
//   dv and dk are complete   | dq = dS·K          | finds the places of the partial rows
//   dq is complete           |                    | stores its rows
#pragma once

#include "kernels/nsa/branch/selected/by_key.cuh"

namespace nsa::cuda {

// Sums of dk and dv of 64 keys in memory, [2·kD / 8][128 threads] times the four accumulators that
// a thread has of each tile of 8 columns: first those of dk, then those of dv.
template <int kD>
constexpr int kSumTiles = 2 * kD / 8;
template <int kD>
constexpr int64_t kSumFloats = int64_t{kKeyTile} * kPartialRow<kD>;

template <int kD>
__device__ __forceinline__ float* KeySums(const AttentionProblem& p, const ByKey& work, int bg,
                                          int block, int part) {
  return work.key_sums +
         ((int64_t{1} * bg * p.sel_blocks + block) * work.parts + part) * kSumFloats<kD>;
}
template <int kD>
__device__ __forceinline__ float* SlotSums(const ByKey& work, int bg, int slot, int part) {
  return work.item_sums +
         ((int64_t{1} * bg * work.slots + slot) * work.parts + part) * kSumFloats<kD>;
}

// Reads the thread's accumulators of dk (`first` = 0) or dv (`first` = kD / 8) from `sums`, and
// writes them.
template <int kD>
__device__ __forceinline__ void ReadSums(Rows16<kD>& gradient, const float* sums, int first) {
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    const float4 sum =
        reinterpret_cast<const float4*>(sums)[(first + n) * kByKeyThreads + threadIdx.x];
    gradient[n][0] = sum.x, gradient[n][1] = sum.y, gradient[n][2] = sum.z, gradient[n][3] = sum.w;
  }
}
template <int kD>
__device__ __forceinline__ void WriteSums(const Rows16<kD>& gradient, float* sums, int first) {
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    reinterpret_cast<float4*>(sums)[(first + n) * kByKeyThreads + threadIdx.x] = {
        gradient[n][0], gradient[n][1], gradient[n][2], gradient[n][3]};
  }
}

// Stores the sums of dk and dv of an item.
template <int kD>
__device__ __forceinline__ void FinishItem(const Rows16<kD>& dk, const Rows16<kD>& dv,
                                           const AttentionProblem& p,
                                           const AttentionGradients& grad, const ByKey& work,
                                           const ByKeyItem& item, const DkvWork& list, int warp,
                                           int lane) {
  const int bg = item.b * p.groups + item.g, slot = item.sums.slot();
  if (slot >= 0 || item.sums.goes_on()) {
    float* sums = slot >= 0 ? SlotSums<kD>(work, bg, slot, item.part)
                            : KeySums<kD>(p, work, bg, item.block, item.part);
    WriteSums<kD>(dk, sums, 0);
    WriteSums<kD>(dv, sums, kD / 8);
    return;
  }
  StoreKeys<kD, kD>(dk, p.scale, p, list, grad.dk, 0, item.b, item.g, warp, lane);
  StoreKeys<kD, kD>(dv, 1.0f, p, list, grad.dv, kD, item.b, item.g, warp, lane);
}

// Writes the gradients of a warp's 16 keys' logits by the rows 16·step … 16·step + 15 to a
// Tile<64> with a row per key.
__device__ __forceinline__ void StoreLogitGradients(bf16* tile, const Rows16<kByKeyRows>& gradient,
                                                    int step, int warp, int lane) {
#pragma unroll
  for (int n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = warp * 16 + lane / 4 + 8 * i;
      bf16* to = Tile<kByKeyRows>::At(tile, key, n) + 2 * (lane & 3);
      *reinterpret_cast<uint32_t*>(to) = Pack(gradient[n][2 * i], gradient[n][2 * i + 1]);
    }
  }
}

// Grid: parts · B·G · capacity.
template <int kD>
__global__ void __launch_bounds__(kByKeyThreads, DkvBlocks(kD, 1))
    SelectedOnePassKernel(Begin begin, AttentionProblem p, AttentionGradients grad,
                          SelectedLists lists, ByKey work, int range) {
  static_assert(!kHasWgmma || kFit<DkvBlocks(kD, 1), OnePassSharedBytes(kD)>);
  begin.WaitForPrevious();
  if constexpr (kByWarpGroup<kD>) {
    ByKeyItem item;
    if (!FindItem(p, work, range, &item)) return;
    extern __shared__ __align__(kTileAlignment) uint8_t memory[];
    const ByKeyShared<kD, true> shared(memory);
    bf16* const ds_tile = reinterpret_cast<bf16*>(memory + ByKeySharedBytes(kD, true));
    LoadItem(shared, p, lists, item);
    DkvWork list{};
    list.list = shared.tokens, list.count = item.count;
    list.begin = item.keys.begin, list.end = item.keys.end;
    SetAllSeen<kSel>(p, &list);
    __syncthreads();

    const ByKeyRowTiles<kD, true> tiles(p, grad, work, range, item);
    tiles.Begin(shared, p, work, item, list);

    const int lane = threadIdx.x % kWarp, warp = WarpIndex();
    const float scale_log2 = p.scale * kLog2E;
    Rows16<kD> dk = {}, dv = {};
    if (item.sums.continues()) {
      const float* sums = KeySums<kD>(p, work, item.b * p.groups + item.g, item.block, item.part);
      ReadSums<kD>(dk, sums, 0);
      ReadSums<kD>(dv, sums, kD / 8);
    }
    for (int i = 0; i < tiles.tiles; ++i) {
      tiles.Await();
      const int stage = i & 1;
      const bf16* q = shared.q + stage * shared.kTile;
      const bf16* d_o = shared.d_o + stage * shared.kTile;
      const float2* stats = shared.stats + stage * kByKeyRows;
      Rows16<kByKeyRows> weights, d_weights;
      const bool all_seen = tiles.planner.AllSeen(list, i * tiles.planner.tokens);
      const auto weigh = [&] {
        WeighRows<kByKeyRows>(weights, stats, shared.plans[i % kRowPlans], list, all_seen,
                              scale_log2, warp, lane);
      };
      TwoByRow<kD, kD, kByKeyRows>(
          weights, shared.k, q, d_weights, shared.v, d_o, warp, lane,
          [&] { tiles.Refill(shared, p, work, item, list, i); }, weigh);
      TwoAccumulate<kD, kD, kByKeyRows>(
          dv, weights, d_o, dk, d_weights, q, lane,
          [&](int step) {
            DifferentiateRows<kByKeyRows>(d_weights, weights, stats, step, lane);
            StoreLogitGradients(ds_tile, d_weights, step, warp, lane);
          },
          [] {
            FenceTiles();
            __syncthreads();
          });
      Rows16<kD> dq;
      Row rows[2] = {};
      ByColumn<kD>(dq, ds_tile, shared.k, [&] { FindRows(rows, shared, i, warp, lane); });
      StorePartialRows<kD>(dq, rows, work.rows, lane);
    }
    FinishItem<kD>(dk, dv, p, grad, work, item, list, warp, lane);
  }
}

// Stores one accumulator tile of dk or dv (`tile` counts as in kSumTiles) as bf16.
template <int kD>
__device__ __forceinline__ void StoreSumTile(const float4& sum, const AttentionProblem& p,
                                             const AttentionGradients& grad, const KeyTile& keys,
                                             int b, int g, int tile) {
  const bool is_v = tile >= kD / 8;
  const int lane = threadIdx.x % kWarp;
  const int column = (is_v ? tile - kD / 8 : tile) * 8 + 2 * (lane & 3);
  KeyRows out = grad.dk;
  if (is_v) out = grad.dv;
  if (column >= out.width) return;
  const float factor = is_v ? 1.0f : p.scale;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int key = keys.begin + threadIdx.x / kWarp * 16 + lane / 4 + 8 * i;
    if (key >= keys.end) continue;
    const float2 value =
        i == 0 ? float2{sum.x * factor, sum.y * factor} : float2{sum.z * factor, sum.w * factor};
    const float2 turned = out.Turned(value, key, column);
    *reinterpret_cast<uint32_t*>(out.At(p, b, key, g) + column) = Pack(turned.x, turned.y);
  }
}

// Adds the sums of the items of blocks that have several in a range. The sums of the first item
// contain those of earlier ranges. Grid: slices · parts · B·G · splits.
template <int kD>
__global__ void __launch_bounds__(kByKeyThreads)
    AddItemSumsKernel(Begin begin, AttentionProblem p, AttentionGradients grad, ByKey work,
                      int range) {
  begin.WaitForPrevious();
  int index = blockIdx.x;
  const int slice = index % kAddSlices;
  index /= kAddSlices;
  const int part = index % work.parts;
  index /= work.parts;
  const int pairs = p.batch * p.groups, bg = index % pairs, number = index / pairs;
  if (number >= work.counts[range * pairs + bg].y) return;
  const int4 found = work.several[(int64_t{1} * range * pairs + bg) * work.splits + number];
  const int block = found.x, first_slot = found.y, items = found.z;
  const KeyTile keys = KeysOfPart(p, block, part);
  if (keys.begin >= keys.end) return;
  const ItemSums sums{found.w};
  const auto at = [&](int tile) { return tile * kByKeyThreads + threadIdx.x; };
  const auto slot_sums = [&](int i) {
    return reinterpret_cast<const float4*>(SlotSums<kD>(work, bg, first_slot + i, part));
  };
  for (int tile = slice; tile < kSumTiles<kD>; tile += kAddSlices) {
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int i = 0; i < items; ++i) {
      const float4 term = slot_sums(i)[at(tile)];
      sum.x += term.x, sum.y += term.y, sum.z += term.z, sum.w += term.w;
    }
    if (sums.goes_on()) {
      reinterpret_cast<float4*>(KeySums<kD>(p, work, bg, block, part))[at(tile)] = sum;
    } else {
      StoreSumTile<kD>(sum, p, grad, keys, bg / p.groups, bg % p.groups, tile);
    }
  }
}

// Whether backward by key block goes in one pass: in sm_90a code with heads that are 64 or 128
// wide.
inline absl::StatusOr<bool> OnePass(const NsaShape& shape) {
  NSA_ASSIGN_OR_RETURN(const int32_t architecture, KernelArchitecture());
  return GoesInOnePass(std::max(shape.d_k, shape.d_v), architecture >= 90);
}

// Runs dq, dk and dv for all ranges. The lists must have been built.
inline absl::Status RunOnePass(const Exec& exec, const NsaShape& shape, const AttentionProblem& p,
                               const AttentionGradients& grad, const SelectedLists& lists,
                               const ByKey& work, const char* what) {
  const int pairs = p.batch * p.groups;
  NSA_RETURN_IF_ERROR(PlanItems(exec, p, lists, work, what));
  return ForHeadWidth(shape, [&](auto head_width) -> absl::Status {
    constexpr int kD = std::clamp(decltype(head_width)::value, 64, 128);  // as OnePass() says
    auto* kernel = SelectedOnePassKernel<kD>;
    constexpr int kShared = OnePassSharedBytes(kD);
    const LaunchShape launch = {.grid = Blocks(work.parts * pairs * work.capacity),
                                .block = kByKeyThreads,
                                .shared = kShared,
                                .next_may_start = false};
    const LaunchShape add = {.grid = Blocks(kAddSlices * work.parts * pairs * work.splits),
                             .block = kByKeyThreads};
    for (int range = 0; range < work.ranges; ++range) {
      NSA_RETURN_IF_ERROR(Launch(exec, what, kernel, launch, p, grad, lists, work, range));
      NSA_RETURN_IF_ERROR(Launch(exec, what, AddItemSumsKernel<kD>, add, p, grad, work, range));
      NSA_RETURN_IF_ERROR((LaunchCombine<kD, true>(exec, p, {}, grad, work, range, what)));
    }
    return absl::OkStatus();
  });
}

}  // namespace nsa::cuda
