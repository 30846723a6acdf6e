// The query rows of the key-major kernels: which rows a tile has, and their way into shared memory.
//
// A tile takes as many tokens as fit into its rows, times the h heads of a group. The tokens of a
// segment follow each other or stand in a list. With a list, one thread per row finds out where the
// row is (RowPlan), so that the threads that copy 16 bytes of it each need not. A plan is made one
// tile before the copies begin, and all threads meet once per tile in between. Where the copy
// engine brings the rows (BoxRowTiles), a tile needs a plan only if a row does not see all keys.
#pragma once

#include <climits>

#include "kernels/nn/rope_angles.cuh"
#include "kernels/nsa/branch/attention_boxes.cuh"
#include "kernels/nsa/branch/attention_tile.cuh"

namespace nsa::cuda {

// Where gradients of keys or values go: [B, keys, G, width].
struct KeyRows {
  bf16* data;
  const float2* angles;  // [keys, width/2]: they are rotated back by these; null: not rotated
  int width;
  int stride;  // elements from a key to the next

  __device__ __forceinline__ bf16* At(const AttentionProblem& p, int b, int key, int g) const {
    return data + (int64_t{1} * b * p.keys + key) * stride + g * width;
  }
  // Two neighbouring columns of a key as they are to be written; `column` is even.
  __device__ __forceinline__ float2 Turned(float2 value, int key, int column) const {
    if (angles == nullptr) return value;
    return RotatedBack(value, __ldg(angles + ((int64_t{1} * key * width + column) >> 1)));
  }
};

struct AttentionGradients {
  const float2* stats;  // [B, S, H]: lse in log2 units, delta
  const bf16* d_o;      // [B, S, H, dv]
  bf16* dq;             // [B, S, H, dk], dq_stride elements from a token to the next
  KeyRows dk, dv;
  int dq_stride;
  bool add_to_dq;
  const float2* dq_angles;  // BranchBackwardArgs::dq_angles and dq_mean, or null
  const bf16* dq_mean;
  float mean_share;  // 1 / h
};

// Where dq of one token and head goes.
struct DqRow {
  bf16* to;
  const float2* angles;  // of the token, or null
  const bf16* mean;      // of the token and group, or null
  float share;
  bool adds;

  __device__ __forceinline__ DqRow(const AttentionProblem& p, const AttentionGradients& grad, int b,
                                   int t, int head, int g)
      : angles(nullptr), mean(nullptr), share(grad.mean_share), adds(grad.add_to_dq) {
    const int64_t token = int64_t{1} * b * p.seq_len + t;
    to = grad.dq + token * grad.dq_stride + head * p.dk;
    if (grad.dq_angles != nullptr) angles = grad.dq_angles + (int64_t{1} * t * p.dk >> 1);
    if (grad.dq_mean != nullptr) mean = grad.dq_mean + (token * p.groups + g) * p.dk;
  }
  // Two columns, the first of which is even: scale · value, plus what was there if it adds, rotated
  // back, plus the mean's share.
  __device__ __forceinline__ void Store(int column, float2 value, float scale) const {
    auto* const at = reinterpret_cast<__nv_bfloat162*>(to + column);
    const float2 old = adds ? __bfloat1622float2(*at) : float2{0, 0};
    value = {fmaf(value.x, scale, old.x), fmaf(value.y, scale, old.y)};
    if (angles != nullptr) value = RotatedBack(value, __ldg(angles + (column >> 1)));
    if (mean != nullptr) {
      const float2 add =
          __bfloat1622float2(__ldg(reinterpret_cast<const __nv_bfloat162*>(mean + column)));
      value = {fmaf(add.x, share, value.x), fmaf(add.y, share, value.y)};
    }
    *at = __floats2bfloat162_rn(value.x, value.y);
  }
};

// The query rows that a thread block of the key-major kernel processes, and where its sums go.
struct DkvWork {
  const int* list;  // in shared memory: the tokens that chose the block, ascending; null: tokens
                    // first, first + 1, …
  int first;
  int count;       // tokens of this segment
  int begin, end;  // keys [begin, end)
  int all_from;    // tokens all_from … all_to see all these keys
  int all_to;
  float*
      partial;  // fp32 [keys, kPartialRow] for partial sums, or null: write to dk and dv directly

  __device__ __forceinline__ int Token(int index) const {
    return list == nullptr ? first + index : list[index];
  }
};

// Rows of a query tile in the key-major kernel of dk and dv.
template <int kD>
constexpr int kRowTile = RowTile(kD, kLargeTiles<kD>);

constexpr int kDkvThreads = 128;  // of a warp group

// The rows of a tile.
template <int kRows>
struct alignas(16) RowPlan {
  int2 keys[kRows];  // first key that the row sees, number of keys that it sees
  int at[kRows];     // token · H + head of the group, −1: no row
};
static_assert(sizeof(RowPlan<32>) == 32 * kRowPlanBytes && sizeof(float2) == kRowStatsBytes);

// Makes the plans. Thread r < kRows plans row r of every tile.
template <Branch kBranch, int kRows>
struct RowPlanner {
  int query, head;  // of the thread's row
  int tokens;       // per tile

  __device__ __forceinline__ explicit RowPlanner(const AttentionProblem& p)
      : query(QueryOf(p, threadIdx.x)), head(threadIdx.x - query * p.h), tokens(kRows / p.h) {}

  // Whether the thread has a row of the tile that begins with token `from` of the work.
  __device__ __forceinline__ bool HasRow(const DkvWork& work, int from) const {
    return query < min(tokens, work.count - from);
  }
  __device__ __forceinline__ void Plan(const AttentionProblem& p, const DkvWork& work, int b,
                                       int from, RowPlan<kRows>& plan) const {
    const int row = threadIdx.x;
    if (row >= kRows) return;
    if (!HasRow(work, from)) {
      plan.at[row] = -1;
      plan.keys[row] = {0, 0};
      return;
    }
    const int t = work.Token(from + query);
    plan.at[row] = t * p.heads + head;  // NsaShape limits B·S·H to below 2³¹
    plan.keys[row] = KeysAt(p, b, t);
  }
  // RowPlan::keys of a row of token t.
  __device__ __forceinline__ int2 KeysAt(const AttentionProblem& p, int b, int t) const {
    const KeyRange keys = KeysOf<kBranch>(p, b, t);
    return {keys.begin, max(0, keys.end - keys.begin)};
  }
  // Whether every token of the tile sees every key of the work.
  __device__ __forceinline__ bool AllSeen(const DkvWork& work, int from) const {
    return work.Token(from) >= work.all_from &&
           work.Token(min(from + tokens, work.count) - 1) <= work.all_to;
  }
};

// Copies rows, kThreads threads. A thread copies the same rows and columns of every tile, as in
// KeyStages. Without kGradients it loads q alone.
template <int kD, int kRows, bool kGradients = true, int kThreads = kDkvThreads>
struct RowLoader {
  static constexpr int kChunks = kD > 128 ? 8 : kD / 8;
  static constexpr int kQueryCopies = kD / 8 / kChunks;  // of a thread, in a row
  static constexpr int kOutputCopies = kDv<kD> / 8 / kChunks;
  static constexpr int kRowsApart = kThreads / kChunks;
  static constexpr int kCopies = kRows / kRowsApart;
  static_assert(kRowsApart % 8 == 0);  // after 8 rows the order of a tile's chunks repeats

  int chunk, first_row;
  const bf16 *q, *d_o;  // the thread's column of token 0, first head of the group
  const float2* stats;  // of this token and head
  bool q_column, o_column[kOutputCopies];

  __device__ __forceinline__ RowLoader(const AttentionProblem& p, const AttentionGradients& grad,
                                       int b, int g)
      : chunk(threadIdx.x % kChunks), first_row(threadIdx.x / kChunks), q_column(chunk * 8 < p.dk) {
#pragma unroll
    for (int c = 0; c < kOutputCopies; ++c) o_column[c] = (chunk + c * kChunks) * 8 < p.dv;
    const int64_t first = int64_t{1} * b * p.seq_len * p.heads + g * p.h;
    q = p.q + first * p.dk + chunk * 8;
    if constexpr (kGradients) {
      d_o = grad.d_o + first * p.dv + chunk * 8;
      stats = grad.stats + first;
    }
  }

  // Starts the copies of a tile's rows and of their statistics; at(row) is RowPlan::at of a row.
  // Rows that are none become zero, with statistics that make every weight 0.
  template <class At>
  __device__ __forceinline__ void Load(const AttentionProblem& p, bf16* q_tile, bf16* do_tile,
                                       float2* row_stats, At at) const {
    const int first = Tile<kD>::Offset(first_row, chunk),
              first_o = Tile<kDv<kD>>::Offset(first_row, chunk);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int from = at(first_row + i * kRowsApart), to = first + i * kRowsApart * kD;
      const bf16* const q_row = RowPointer(q, from, p.dk);
#pragma unroll
      for (int c = 0; c < kQueryCopies; ++c) {
        CopyAsync16(q_tile + to + c * kPanel, q_row + c * kPanelColumns, from >= 0 && q_column);
      }
      if constexpr (kGradients) {
        const int o_to = first_o + i * kRowsApart * kDv<kD>;
        const bf16* const o_row = RowPointer(d_o, from, p.dv);
#pragma unroll
        for (int c = 0; c < kOutputCopies; ++c) {
          CopyAsync16(do_tile + o_to + c * kPanel, o_row + c * kPanelColumns,
                      from >= 0 && o_column[c]);
        }
      }
    }
    if constexpr (kGradients) {
      const int row = threadIdx.x;
      if (row >= kRows) return;
      const int from = at(row);
      if (from >= 0) {
        CopyAsync8(&row_stats[row], stats + from);
      } else {
        row_stats[row] = {INFINITY, 0};
      }
    }
  }
};

// The query rows of a key tile's work on their way through shared memory, copied by all threads.
template <Branch kBranch, int kD, int kGroups>
struct CopiedRowTiles {
  static constexpr int kRows = kRowTile<kD>, kStages = RowStages(kGroups);

  bf16 *q, *d_o;          // kStages tiles each
  RowPlan<kRows>* plans;  // kRowPlans
  float2* stats;          // [kStages, kRows]
  RowPlanner<kBranch, kRows> planner;
  RowLoader<kD, kRows, true, kGroups * kDkvThreads> loader;
  int count;  // tiles

  __device__ __forceinline__ CopiedRowTiles(bf16* memory, const AttentionProblem& p,
                                            const AttentionBoxes& /*boxes*/,
                                            const AttentionGradients& grad, const DkvWork& work,
                                            int b, int g)
      : q(memory),
        d_o(q + kStages * kRows * kD),
        plans(reinterpret_cast<RowPlan<kRows>*>(d_o + kStages * kRows * kDv<kD>)),
        stats(reinterpret_cast<float2*>(plans + kRowPlans)),
        planner(p),
        loader(p, grad, b, g),
        count(CeilDiv(work.count, planner.tokens)) {}

  __device__ __forceinline__ void Plan(const AttentionProblem& p, const DkvWork& work, int b,
                                       int i) const {
    planner.Plan(p, work, b, i * planner.tokens, plans[i % kRowPlans]);
  }
  __device__ __forceinline__ void Load(const AttentionProblem& p, const DkvWork& work,
                                       int i) const {
    if (i < count) {
      const int stage = i % kStages, from = i * planner.tokens;
      const int rows = min(planner.tokens, work.count - from) * p.h;
      const auto at = [&](int row) {
        if constexpr (kBranch == kSel) {
          return plans[i % kRowPlans].at[row];
        } else {
          const int query = QueryOf(p, row);
          return row < rows ? (work.first + from + query) * p.heads + row - query * p.h : -1;
        }
      };
      loader.Load(p, q + stage * kRows * kD, d_o + stage * kRows * kDv<kD>, stats + stage * kRows,
                  at);
    }
    CommitCopies();
  }
  __device__ __forceinline__ void Begin(const AttentionProblem& p, const DkvWork& work,
                                        int b) const {
    for (int i = 0; i < kStages; ++i) Plan(p, work, b, i);
    if constexpr (kBranch == kSel) __syncthreads();
    for (int i = 0; i < kStages - 1; ++i) Load(p, work, i);
  }
  // Call before tile i is used: waits until it is loaded. Contains a barrier.
  __device__ __forceinline__ void Await(int /*i*/) const {
    WaitCopies<kStages - 2>();
    FenceTiles();
    __syncthreads();
  }
  // Call once after Await(), for tile i: all threads are done with tile i − 1, whose stage the next
  // tile takes.
  __device__ __forceinline__ void Refill(const AttentionProblem& p, const DkvWork& work, int b,
                                         int i) const {
    Load(p, work, i + kStages - 1);
    Plan(p, work, b, i + kStages);
  }
  __device__ __forceinline__ const RowPlan<kRows>& PlanOf(int i) const {
    return plans[i % kRowPlans];
  }
};

// The same, where tiles are copied by box: with a list a box has one token, else all of a tile. One
// warp group.
template <Branch kBranch, int kD>
struct BoxRowTiles {
  static constexpr int kRows = kRowTile<kD>, kStages = RowStages(1), kTileElements = kRows * kD;
  static_assert(kStages == 2 && kRowBarrierBytes >= kStages * 8);

  bf16 *q, *d_o;          // kStages tiles each
  RowPlan<kRows>* plans;  // kStages; `keys` alone, and only where not all keys are seen
  float2* stats;          // [kStages, kRows]
  uint64_t* full;         // a barrier of each stage
  const AttentionBoxes& boxes;
  RowPlanner<kBranch, kRows> planner;
  const float2* stats_from;  // of token 0, first head of the group
  int b, first_head;
  int count;  // tiles

  __device__ __forceinline__ BoxRowTiles(bf16* memory, const AttentionProblem& p,
                                         const AttentionBoxes& tensor_boxes,
                                         const AttentionGradients& grad, const DkvWork& work,
                                         int batch_row, int g)
      : q(memory),
        d_o(q + kStages * kTileElements),
        plans(reinterpret_cast<RowPlan<kRows>*>(d_o + kStages * kTileElements)),
        stats(reinterpret_cast<float2*>(plans + kRowPlans)),
        full(reinterpret_cast<uint64_t*>(stats + kStages * kRows)),
        boxes(tensor_boxes),
        planner(p),
        b(batch_row),
        first_head(g * p.h),
        count(CeilDiv(work.count, planner.tokens)) {
    stats_from = grad.stats + int64_t{1} * b * p.seq_len * p.heads + first_head;
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) InitBarrier(&full[stage], 1);
      FenceBarriers();
    }
  }

  __device__ __forceinline__ void Load(const AttentionProblem& p, const DkvWork& work,
                                       int i) const {
    if (i >= count) return;
    const int stage = i % kStages, from = i * planner.tokens;
    const int row = threadIdx.x;
    if (row < kRows) {
      const bool all_seen = planner.AllSeen(work, from);
      float2* const row_stats = &stats[stage * kRows + row];
      int2* const keys = &plans[stage].keys[row];
      if (planner.HasRow(work, from)) {
        const int t = work.Token(from + planner.query);
        CopyAsync8(row_stats, stats_from + t * p.heads + planner.head);
        if (!all_seen) *keys = planner.KeysAt(p, b, t);
      } else {
        *row_stats = {INFINITY, 0};
        if (!all_seen) *keys = {0, 0};
      }
    }
    CommitCopies();
    uint64_t* const barrier = &full[stage];
    bf16 *const q_tile = q + stage * kTileElements, *const do_tile = d_o + stage * kTileElements;
    if (threadIdx.x == 0) {
      ArriveExpecting(barrier, 2 * planner.tokens * p.h * kD * static_cast<int>(sizeof(bf16)));
    }
    if constexpr (kBranch == kSel) {
      // The warps take turns. Tokens after the last are outside the tensor: their rows become zero.
#pragma unroll 1
      for (int token = WarpIndex(); token < planner.tokens; token += kDkvThreads / kWarp) {
        const int t = Uniform(from + token < work.count ? work.list[from + token] : p.seq_len);
        const int place = token * p.h * kD;
        if (!Elected()) continue;
        LoadBox(q_tile + place, boxes.q, b, t, first_head, barrier);
        LoadBox(do_tile + place, boxes.d_o, b, t, first_head, barrier);
      }
    } else if (threadIdx.x < kWarp && Elected()) {
      LoadBox(q_tile, boxes.q, b, work.first + from, first_head, barrier);
      LoadBox(do_tile, boxes.d_o, b, work.first + from, first_head, barrier);
    }
  }
  __device__ __forceinline__ void Begin(const AttentionProblem& p, const DkvWork& work,
                                        int /*b*/) const {
    // The rows after the boxes' stay zero.
    const int first = planner.tokens * p.h * kD / 8;
    for (int stage = 0; stage < kStages; ++stage) {
      for (int at = first + threadIdx.x; at < kTileElements / 8; at += kDkvThreads) {
        reinterpret_cast<uint4*>(q + stage * kTileElements)[at] = {0, 0, 0, 0};
        reinterpret_cast<uint4*>(d_o + stage * kTileElements)[at] = {0, 0, 0, 0};
      }
    }
    __syncthreads();
    Load(p, work, 0);
    // The tiles of keys and values, and the zeros.
    WaitCopies<0>();
    FenceTiles();
  }
  // Waits until tile i is loaded. Contains a barrier of all threads.
  __device__ __forceinline__ void Await(int i) const {
    AwaitUse(&full[i % kStages], i / kStages);
    WaitCopies<0>();
    __syncthreads();
  }
  // Call once after Await(), for tile i: all threads are done with tile i − 1, whose stage tile
  // i + 1 takes.
  __device__ __forceinline__ void Refill(const AttentionProblem& p, const DkvWork& work, int /*b*/,
                                         int i) const {
    Load(p, work, i + 1);
  }
  __device__ __forceinline__ const RowPlan<kRows>& PlanOf(int i) const {
    return plans[i % kStages];
  }
};

// Sets the range of tokens that see all keys of the work. With documents, which may hide keys, the
// range is empty.
template <Branch kBranch>
__device__ __forceinline__ void SetAllSeen(const AttentionProblem& p, DkvWork* work) {
  const TokenBounds all = BranchRule<kBranch>::TokensOfAll(p, work->begin, work->end);
  work->all_from = p.doc_start != nullptr ? INT_MAX : all.from;
  work->all_to = all.to;
}

}  // namespace nsa::cuda
