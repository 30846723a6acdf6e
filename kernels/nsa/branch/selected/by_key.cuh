// The selected branch where a token chooses few of many blocks: forward and dq by key block.
//
// In this case neighbouring tokens share hardly any blocks, so a query tile that iterates over the
// union of its tokens' choices mostly computes products that only one token needs. Here the kernel
// instead takes 64 keys of a block and gathers the rows that chose the block (selected/lists.cuh).
// Each row writes one partial result per choice, in bf16: the unnormalised output with its maximum
// and sum in forward, a term of dq in backward. A second kernel adds the partial results of a row
// in the order of its choices, so the bits do not depend on how the work is divided.
//
// Partial results take n times the memory of the final result. They are kept for one range of
// tokens at a time, whose size common/nsa/attention_scratch.h decides. Both kernels run once per
// range of tokens.
//
// Forward of tile i of at most 64 gathered rows in sm_90a code, as in attention_forward.cuh
// (backward: selected/one_pass.cuh):
//
//   when                     | matrix unit        | warp group
//   -------------------------+--------------------+----------------------------------------------
//   tile i has arrived, all  | S = Q·Kᵀ           | starts the copies of tile i + 1, plans tile
//     are done with i − 1    |                    |   i + 2, finds the places of i's partial rows
//   S is complete            |                    | hides keys, P = exp2(S − maximum), stores the
//                            |                    |   maximum and the sum
//   P is there               | o = P·V            |
//   o is complete            |                    | stores its rows
#pragma once

#include "kernels/nsa/branch/selected/combine.cuh"

namespace nsa::cuda {

constexpr int kByKeyThreads = kDkvThreads;
static_assert(kByKeyRows == kGroupRows);

// The layout of a thread block's shared memory, ByKeySharedBytes() in all.
template <int kD, bool kGradient>
struct ByKeyShared {
  static constexpr int kTile = kByKeyRows * kD, kOutputTile = kByKeyRows * kDv<kD>;
  static constexpr int kStages = ByKeyStages(kD);

  bf16 *k, *v;                 // one tile each
  bf16* q;                     // kStages tiles of query rows
  bf16* d_o;                   // the same; gradient only
  RowPlan<kByKeyRows>* plans;  // kRowPlans
  int* partial;                // [kRowPlans, kByKeyRows]: place among the partial rows
  float2* stats;               // [2, kByKeyRows], of two tiles; gradient only
  int *tokens, *choices;       // [kItemTokens], of the item's entries

  __device__ __forceinline__ explicit ByKeyShared(uint8_t* memory)
      : k(reinterpret_cast<bf16*>(memory)),
        v(k + kKeyTile * kD),
        q(v + kKeyTile * kDv<kD>),
        d_o(q + kStages * kTile),
        plans(
            reinterpret_cast<RowPlan<kByKeyRows>*>(kGradient ? d_o + kStages * kOutputTile : d_o)),
        partial(reinterpret_cast<int*>(plans + kRowPlans)),
        stats(reinterpret_cast<float2*>(partial + kRowPlans * kByKeyRows)),
        tokens(reinterpret_cast<int*>(stats + 2 * kByKeyRows)),
        choices(tokens + kItemTokens) {}
};

// The work of a thread block: the tokens of an item against 64 keys of its block.
struct ByKeyItem {
  int b, g, block, part;
  ItemSums sums;
  int first, count;  // entries of the (batch, group)'s lists
  KeyTile keys;
};

// The keys of a part of a block; none if the part begins after the sequence.
__device__ __forceinline__ KeyTile KeysOfPart(const AttentionProblem& p, int block, int part) {
  const int begin = block * p.l_sel + part * kKeyTile;
  return {begin, min(min(begin + kKeyTile, (block + 1) * p.l_sel), p.seq_len), 0xffffffffu};
}

// Sets `item` to the work of this thread block. False if there is none. The items of one (batch,
// group) follow each other, so that the rows that they gather stay in the L2 cache.
__device__ __forceinline__ bool FindItem(const AttentionProblem& p, const ByKey& work, int range,
                                         ByKeyItem* item) {
  const int pairs = p.batch * p.groups, number = blockIdx.x / work.parts;
  const int bg = number / work.capacity, index = number % work.capacity;
  const int4 found = work.items[(int64_t{1} * range * pairs + bg) * work.capacity + index];
  if (index >= work.counts[range * pairs + bg].x) return false;
  item->b = bg / p.groups, item->g = bg % p.groups;
  item->block = found.x, item->part = blockIdx.x % work.parts;
  item->keys = KeysOfPart(p, item->block, item->part);
  item->first = found.y, item->count = found.z, item->sums = {found.w};
  return item->keys.begin < item->keys.end;
}

// Starts the copies of an item's keys and values, and reads its entries.
template <int kD, bool kGradient>
__device__ __forceinline__ void LoadItem(const ByKeyShared<kD, kGradient>& shared,
                                         const AttentionProblem& p, const SelectedLists& lists,
                                         const ByKeyItem& item) {
  LoadKeyTile<kD>(shared.k, p.k, p.dk, p, item.b, item.g, item.keys.begin, item.keys.end);
  LoadKeyTile<kDv<kD>>(shared.v, p.v, p.dv, p, item.b, item.g, item.keys.begin, item.keys.end);
  const int bg = item.b * p.groups + item.g;
  const int* entries = lists.entries + int64_t{1} * bg * lists.capacity;
  for (int i = threadIdx.x; i < item.count; i += kByKeyThreads) {
    shared.tokens[i] = TokenOf(entries[item.first + i]);
    shared.choices[i] = ChoiceOf(entries[item.first + i]);
  }
}

// Turns a thread's logits of its row `e` into exponentials relative to the row's maximum. Returns
// the maximum (log2 units) and the sum of the exponentials; −inf and 0 for a row that sees no key.
__device__ __forceinline__ float2 Exponentials(Rows16<kKeyTile>& logits, int e, float scale_log2) {
  float top = -INFINITY;
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
    top = fmaxf(top, fmaxf(logits[n][2 * e], logits[n][2 * e + 1]));
  }
  top = QuadMax(top) * scale_log2;
  const float reference = top == -INFINITY ? 0.0f : top;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
    for (int i = 2 * e; i < 2 * e + 2; ++i) {
      logits[n][i] = Exp2(fmaf(logits[n][i], scale_log2, -reference));
      sum += logits[n][i];
    }
  }
  return {top, QuadSum(sum)};
}

// The query rows of an item on their way through shared memory: two tiles at a time, or one, which
// is copied while products with the keys alone run.
template <int kD, bool kGradient>
struct ByKeyRowTiles {
  RowPlanner<kSel, kByKeyRows> planner;
  RowLoader<kD, kByKeyRows, kGradient> loader;
  int tiles;
  int first_token;                    // of the range
  int first_partial, partial_stride;  // partial row of its choice 0, part 0; rows per token

  __device__ __forceinline__ ByKeyRowTiles(const AttentionProblem& p,
                                           const AttentionGradients& grad, const ByKey& work,
                                           int range, const ByKeyItem& item)
      : planner(p),
        loader(p, grad, item.b, item.g),
        tiles(CeilDiv(item.count, planner.tokens)),
        first_token(range * work.tokens()),
        partial_stride(p.groups * p.n_sel * work.parts * p.h) {
    // Fits in an int: partial rows have 32 bytes or more each.
    first_partial = static_cast<int>(FirstPartialRow(p, work, item.b, item.g, 0)) +
                    item.part * p.h + planner.head;
  }

  __device__ __forceinline__ void Plan(const ByKeyShared<kD, kGradient>& shared,
                                       const AttentionProblem& p, const ByKey& work,
                                       const ByKeyItem& item, const DkvWork& list, int i) const {
    const int from = i * planner.tokens, slot = i % kRowPlans;
    planner.Plan(p, list, item.b, from, shared.plans[slot]);
    if (threadIdx.x >= kByKeyRows || !planner.HasRow(list, from)) return;
    const int entry = from + planner.query;
    shared.partial[slot * kByKeyRows + threadIdx.x] =
        first_partial + (shared.tokens[entry] - first_token) * partial_stride +
        shared.choices[entry] * work.parts * p.h;
  }
  __device__ __forceinline__ void Load(const ByKeyShared<kD, kGradient>& shared,
                                       const AttentionProblem& p, int i) const {
    if (i < tiles) {
      const int stage = i % shared.kStages;
      loader.Load(p, shared.q + stage * shared.kTile, shared.d_o + stage * shared.kOutputTile,
                  shared.stats + (i & 1) * kByKeyRows,
                  [&](int row) { return shared.plans[i % kRowPlans].at[row]; });
    }
    CommitCopies();
  }
  // Call first; the item's entries must have been read. Contains a barrier.
  __device__ __forceinline__ void Begin(const ByKeyShared<kD, kGradient>& shared,
                                        const AttentionProblem& p, const ByKey& work,
                                        const ByKeyItem& item, const DkvWork& list) const {
    Plan(shared, p, work, item, list, 0);
    Plan(shared, p, work, item, list, 1);
    __syncthreads();
    Load(shared, p, 0);
  }
  // Call before tile i is used: waits until it is loaded. Contains a barrier.
  __device__ __forceinline__ void Await() const {
    WaitCopies<0>();
    FenceTiles();
    __syncthreads();
  }
  // Call once after Await(), for tile i: all threads are done with tile i − 1. With two stages tile
  // i + 1 takes its place.
  __device__ __forceinline__ void Refill(const ByKeyShared<kD, kGradient>& shared,
                                         const AttentionProblem& p, const ByKey& work,
                                         const ByKeyItem& item, const DkvWork& list, int i) const {
    if constexpr (ByKeyShared<kD, kGradient>::kStages == 2) Load(shared, p, i + 1);
    Plan(shared, p, work, item, list, i + 2);
  }
  // Call once after Refill(), after the last use of tile i but for its plan and its statistics.
  __device__ __forceinline__ void Release(const ByKeyShared<kD, kGradient>& shared,
                                          const AttentionProblem& p, int i) const {
    if constexpr (ByKeyShared<kD, kGradient>::kStages == 1) {
      __syncthreads();
      Load(shared, p, i + 1);
    }
  }
};

// The two rows that a thread holds of tile i. Row::at is the row's place among the partial rows.
template <int kD, bool kGradient>
__device__ __forceinline__ void FindRows(Row (&rows)[2], const ByKeyShared<kD, kGradient>& shared,
                                         int i, int warp, int lane) {
  const RowPlan<kByKeyRows>& plan = shared.plans[i % kRowPlans];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = warp * 16 + lane / 4 + 8 * e;
    const int2 seen = plan.keys[row];
    rows[e].valid = plan.at[row] >= 0;
    rows[e].lo = seen.x;
    rows[e].hi = seen.x + seen.y;
    rows[e].at = shared.partial[i % kRowPlans * kByKeyRows + row];
  }
}

// Number of keys that a thread's rows see, counted once for all heads of a group and all lanes of a
// row.
__device__ __forceinline__ unsigned int CountKeys(const AttentionProblem& p, const KeyTile& keys,
                                                  const Row (&rows)[2], int warp, int lane) {
  unsigned int count = 0;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = warp * 16 + lane / 4 + 8 * e;
    if (row == QueryOf(p, row) * p.h && (lane & 3) == 0) count += KeysSeen(keys, rows[e]);
  }
  return count;
}

// o ← the rows' weights times V. Stores the maximum and the sum of the weights. Calls meanwhile(),
// which sets `rows`, while the matrix unit multiplies, and release() once q is no longer needed.
template <int kD, class Meanwhile, class Release>
__device__ __forceinline__ void PartialOutputs(Rows16<kDv<kD>>& o,
                                               const ByKeyShared<kD, false>& shared, const bf16* q,
                                               const KeyTile& keys, const Row (&rows)[2],
                                               float scale_log2, float2* sums, int warp, int lane,
                                               Meanwhile meanwhile, Release release) {
  Rows16<kKeyTile> weights;
  ByRow<kD, kKeyTile>(weights, q, shared.k, warp, lane, meanwhile);
  release();
  if (!Inside(keys, rows)) HideUnseen(weights, keys, rows, lane);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float2 sum = Exponentials(weights, e, scale_log2);
    if (rows[e].valid && (lane & 3) == 0) sums[rows[e].at] = sum;
  }
  Accumulate<kDv<kD>, kKeyTile>(o, weights, shared.v, lane);
}

// dq ← the gradients of the rows' logits times K, without the scale. meanwhile() and release() as
// above.
template <int kD, class Meanwhile, class Release>
__device__ __forceinline__ void PartialDq(Rows16<kD>& dq, const ByKeyShared<kD, true>& shared,
                                          const bf16* q, const bf16* d_o, const float2* row_stats,
                                          const KeyTile& keys, const Row (&rows)[2],
                                          float scale_log2, int warp, int lane, Meanwhile meanwhile,
                                          Release release) {
  Rows16<kKeyTile> weights, d_weights;
  const float2 stats[2] = {row_stats[warp * 16 + lane / 4], row_stats[warp * 16 + lane / 4 + 8]};
  const auto weigh = [&] {
    if (!Inside(keys, rows)) HideUnseen(weights, keys, rows, lane);
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        weights[n][e] = Exp2(fmaf(weights[n][e], scale_log2, -stats[e >> 1].x));
      }
    }
  };
  TwoByRow<kD, kDv<kD>, kKeyTile>(weights, q, shared.k, d_weights, d_o, shared.v, warp, lane,
                                  meanwhile, weigh);
  release();
  Accumulate<kD, kKeyTile>(dq, weights, shared.k, lane, [&](int step) {
#pragma unroll
    for (int n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[n][e] *= d_weights[n][e] - stats[e >> 1].y;
    }
  });
}

// Writes a thread's two rows to the partial rows, of kWidth columns.
template <int kWidth>
__device__ __forceinline__ void StorePartialRows(const Rows16<kWidth>& result, const Row (&rows)[2],
                                                 bf16* partial_rows, int lane) {
  using Chunk = PartialChunk<kWidth>;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (!rows[e].valid) continue;
    bf16* to = partial_rows + rows[e].at * kWidth + (lane & 3) * Chunk::kColumns;
#pragma unroll
    for (int j = 0; j < Chunk::kOfRow / 4; ++j) {
      typename Chunk::Packed packed;
      auto* pairs = reinterpret_cast<uint32_t*>(&packed);
#pragma unroll
      for (int i = 0; i < Chunk::kTiles; ++i) {
        const float(&tile)[4] = result[j * Chunk::kTiles + i];
        pairs[i] = Pack(tile[2 * e], tile[2 * e + 1]);
      }
      __stcs(reinterpret_cast<typename Chunk::Packed*>(to + 4 * j * Chunk::kColumns), packed);
    }
  }
}

// Computes the partial results of one item and part. Grid: parts · B·G · capacity.
template <int kD, bool kGradient>
__global__ void __launch_bounds__(kByKeyThreads, ByKeyBlocks(kD, kGradient, kHasWgmma))
    SelectedByKeyKernel(Begin begin, AttentionProblem p, AttentionGradients grad,
                        SelectedLists lists, ByKey work, int range, unsigned long long* keys_read) {
  // For dq with heads of 64 and 128 an A100 has room for one thread block less than it has
  // registers for.
  constexpr bool kLess = kGradient && kD >= 64 && kD <= 128 && !kHasWgmma;
  static_assert(kFit<ByKeyBlocks(kD, kGradient, kHasWgmma) - (kLess ? 1 : 0),
                     ByKeySharedBytes(kD, kGradient)>);
  begin.WaitForPrevious();
  ByKeyItem item;
  if (!FindItem(p, work, range, &item)) return;
  extern __shared__ __align__(kTileAlignment) uint8_t memory[];
  const ByKeyShared<kD, kGradient> shared(memory);
  LoadItem(shared, p, lists, item);
  DkvWork list{};
  list.list = shared.tokens;
  list.count = item.count;
  __syncthreads();

  const ByKeyRowTiles<kD, kGradient> tiles(p, grad, work, range, item);
  tiles.Begin(shared, p, work, item, list);

  const int lane = threadIdx.x % kWarp, warp = WarpIndex();
  const float scale_log2 = p.scale * kLog2E;
  unsigned int keys_seen = 0;
  for (int i = 0; i < tiles.tiles; ++i) {
    tiles.Await();
    const int stage = i % shared.kStages;
    const bf16* q = shared.q + stage * shared.kTile;
    Row rows[2] = {};
    const auto release = [&] { tiles.Release(shared, p, i); };
    const auto meanwhile = [&] {
      tiles.Refill(shared, p, work, item, list, i);
      FindRows(rows, shared, i, warp, lane);
    };
    constexpr int kWidth = kPartialWidth<kD, kGradient>;
    Rows16<kWidth> result = {};
    if constexpr (kGradient) {
      PartialDq<kD>(result, shared, q, shared.d_o + stage * shared.kOutputTile,
                    shared.stats + (i & 1) * kByKeyRows, item.keys, rows, scale_log2, warp, lane,
                    meanwhile, release);
    } else {
      PartialOutputs<kD>(result, shared, q, item.keys, rows, scale_log2, work.sums, warp, lane,
                         meanwhile, release);
      if (keys_read != nullptr) keys_seen += CountKeys(p, item.keys, rows, warp, lane);
    }
    StorePartialRows<kWidth>(result, rows, work.rows, lane);
  }
  if (!kGradient && keys_read != nullptr) {
    keys_seen = __reduce_add_sync(0xffffffffu, keys_seen);
    // The order of an integer sum does not matter.
    if (lane == 0 && keys_seen > 0)
      atomicAdd(keys_read, static_cast<unsigned long long>(keys_seen));
  }
}

// Runs forward (kGradient false, writes `out`) or dq (kGradient true, writes `grad`) for all
// ranges. The lists must have been built.
template <bool kGradient>
absl::Status RunByKey(const Exec& exec, const NsaShape& shape, const AttentionProblem& p,
                      const AttentionOutputs& out, const AttentionGradients& grad,
                      const SelectedLists& lists, const ByKey& work, const char* what) {
  const int pairs = p.batch * p.groups;
  NSA_RETURN_IF_ERROR(PlanItems(exec, p, lists, work, what));
  return ForHeadWidth(shape, [&](auto head_width) -> absl::Status {
    constexpr int kD = decltype(head_width)::value;
    auto* kernel = SelectedByKeyKernel<kD, kGradient>;
    constexpr int kShared = ByKeySharedBytes(kD, kGradient);
    const LaunchShape launch = {.grid = Blocks(work.parts * pairs * work.capacity),
                                .block = kByKeyThreads,
                                .shared = kShared,
                                .next_may_start = false};
    for (int range = 0; range < work.ranges; ++range) {
      NSA_RETURN_IF_ERROR(
          Launch(exec, what, kernel, launch, p, grad, lists, work, range, out.keys_read));
      NSA_RETURN_IF_ERROR((LaunchCombine<kPartialWidth<kD, kGradient>, kGradient>(
          exec, p, out, grad, work, range, what)));
    }
    return absl::OkStatus();
  });
}

}  // namespace nsa::cuda
