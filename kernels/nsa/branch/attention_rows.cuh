// The query rows of the key-major kernels: which rows a tile has, and their way into shared memory.
//
// A tile takes as many tokens as fit into its rows, times the h heads of a group. The tokens of a
// segment follow each other or stand in a list. With a list, one thread per row finds out where the
// row is (RowPlan), so that the threads that copy 16 bytes of it each need not. A plan is made one
// tile before the copies begin, and all threads meet once per tile in between.
#pragma once

#include <climits>

#include "kernels/nsa/branch/attention_tile.cuh"

namespace nsa::cuda {

struct AttentionGradients {
  const float2* stats;  // [B, S, H]: lse in log2 units, delta
  const bf16* d_o;      // [B, S, H, dv]
  bf16* dq;             // [B, S, H, dk]
  bf16* dk;             // [B, keys, G, dk]
  bf16* dv;             // [B, keys, G, dv]
  bool add_to_dq;
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

// Rows of a query tile in the key-major kernel of dk and dv. A thread has 192 accumulators with 64
// rows and heads of 128, and as many with 32 rows and keys of 192.
template <int kD>
__host__ __device__ constexpr int RowTile(bool large_tiles) {
  return large_tiles && kD <= 128 ? 64 : 32;
}
template <int kD>
constexpr int kRowTile = RowTile<kD>(kLargeTiles<kD>);

// Stages of query rows in the key-major kernel of dk and dv with `groups` warp groups.
__host__ __device__ constexpr int RowStages(int groups) { return groups > 1 ? 3 : 2; }

constexpr int kDkvThreads = 128;  // of a warp group

// The rows of a tile.
template <int kRows>
struct alignas(16) RowPlan {
  int2 keys[kRows];  // first key that the row sees, number of keys that it sees
  int at[kRows];     // token · H + head of the group, −1: no row
};
// Plans that are kept: of the tile that is being multiplied, of up to two that are being copied,
// and of the next.
constexpr int kRowPlans = 4;

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
    const KeyRange keys = KeysOf<kBranch>(p, b, t);
    plan.at[row] = t * p.heads + head;  // NsaShape limits B·S·H to below 2³¹
    plan.keys[row] = {keys.begin, max(0, keys.end - keys.begin)};
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

// Sets the range of tokens that see all keys of the work. With documents, which may hide keys, the
// range is empty.
template <Branch kBranch>
__device__ __forceinline__ void SetAllSeen(const AttentionProblem& p, DkvWork* work) {
  const TokenBounds all = BranchRule<kBranch>::TokensOfAll(p, work->begin, work->end);
  work->all_from = p.doc_start != nullptr ? INT_MAX : all.from;
  work->all_to = all.to;
}

}  // namespace nsa::cuda
