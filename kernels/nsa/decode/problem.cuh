// What the kernels of attend_rows.cu, choose_blocks.cu and sum_parts.cu share: the rows, the
// caches, and where the results of the parts are.
#pragma once

#include <cstdint>

#include "common/nsa/attention_scratch.h"
#include "common/nsa/visibility.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nsa/decode/attend_rows.h"

namespace nsa::cuda {

constexpr int kPartKeys = CachedParts::kKeys;
constexpr int kMostHeads = 16;      // query heads in a group
constexpr int kMostKeyWidth = 192;  // of the kernels for wide keys; the others' is 128
constexpr int kMostSelected = 64;   // blocks of a row and group

// The sizes have the names that BranchRule (common/nsa/visibility.h) reads.
struct DecodeProblem {
  int l, d, l_sel, n_sel, window;
  int rows, tokens, groups, heads, h, dk, dv;
  float scale;  // log2(e) / √dk: scores are exponents of 2

  const int* at;         // AttendCachedArgs::at
  const int* doc_start;  // may be null
  const bf16* q;
  const bf16* k[kBranches];
  const bf16* v[kBranches];
  int first_part[kBranches], parts[kBranches];
  int* blocks;
  unsigned long long* keys_read;

  int64_t score_step;  // numbers of a row of `scores`
  float* scores;       // [R, H, score_step], of the compressed keys that are visible
  float2* stats;       // [parts, R, H]: maximum of the scores, Σ 2^(score − maximum)
  float* part_o;       // [parts, R, H, dv], Σ 2^(score − maximum) · v

  __device__ __forceinline__ int PositionOf(int row) const { return at[0] + row; }
  __device__ __forceinline__ int WindowBegin() const { return at[1 + kWin]; }
  __device__ __forceinline__ int DocStart(int row) const {
    return doc_start == nullptr ? 0 : doc_start[row];
  }
  __device__ __forceinline__ int64_t StatsAt(int part, int row, int head) const {
    return (int64_t{part} * rows + row) * heads + head;
  }
};

// The branches that are present, in order, and with several of them the gate that weighs them.
struct DecodeGate {
  int branches;
  int branch[kBranches];
  bool sigmoid;
  const bf16* q;  // not rotated
  const bf16 *fc1_w, *fc1_b, *fc2_w, *fc2_b;
  bf16* o;  // [R, H, dv]
};

// Chooses the selection blocks of every row and group from the scores and statistics of cmp.
absl::Status ChooseCachedBlocks(const Exec& exec, const DecodeProblem& p);

// Adds up the parts of every branch and writes the gate's combination of them.
absl::Status SumParts(const Exec& exec, const DecodeProblem& p, const DecodeGate& gate);

}  // namespace nsa::cuda
