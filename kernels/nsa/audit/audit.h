// Audit of the attention: how much of the exact attention a branch keeps. For sampled queries, all
// heads of each:
//
//   p    = softmax_j(scale · q[b,t,a,:]·k[b,j,g,:])   over all keys j ≤ t of t's document
//   kept = Σ p_j over the keys j that the branch reads at (b, t, g)
//
// k are the branch's own keys: those of the selected branch for its chosen blocks, those of the
// window branch for its last w tokens. 1 means that nothing was left out; a selection that keeps
// much less misses keys that the model would attend to, and a larger n_sel would find them.
//
// Nothing but `kept` is written. The cost is one product per (sampled query, head, key), 2·dk
// operations: for N queries 2·dk·H·N·S/2 on average, per branch and layer. With 256 queries, 12
// layers of 12 heads, dk = 64, S = 2048 and both branches that is 10 GFLOP, while a step of 32,768
// tokens of the same model (124 M parameters) takes 24,000 GFLOP.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"
#include "common/nsa/visibility.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// Queries that an audit samples: at most this many, and no more than there are.
inline constexpr int32_t kAuditedQueries = 256;

// The i-th sampled query of an audit, as b·S + t, out of `queries` = B·S: a fixed hash of (step,
// i). A query may be sampled more than once.
NSA_HOST_DEVICE int32_t AuditedQuery(int64_t step, int32_t i, int32_t queries) {
  // SplitMix64.
  uint64_t x = static_cast<uint64_t>(step) * kAuditedQueries + static_cast<uint64_t>(i);
  x = (x + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<int32_t>((x >> 32) * static_cast<uint64_t>(queries) >> 32);
}

struct AuditArgs {
  NsaShape shape;
  Branch branch = kSel;   // kSel or kWin
  float scale = 0;        // 0 means 1/√dk
  ConstTensor q;          // [B, S, H, dk], rotated
  ConstTensor k;          // [B, S, G, dk], rotated, of the branch
  ConstTensor blocks;     // kSel only: int32 [B, S, G, n], the output of SelectBlocks
  ConstTensor doc_start;  // optional int32 [B, S]
  int64_t step = 0;       // chooses the queries
  int32_t queries = 0;    // N, 1 to kAuditedQueries
  Tensor kept;            // fp32 [N, H], overwritten; row i is that of AuditedQuery(step, i, B·S)
};

// Errors: InvalidArgument when the shape is outside its limits, the branch has no keys of its own
// tokens, or a tensor differs from its shape.
absl::Status AuditAttention(const Exec& exec, const AuditArgs& args);

// What the selection chose for sampled queries: copies the block lists of each query and of the
// token before it.
struct AuditChoicesArgs {
  NsaShape shape;
  ConstTensor blocks;     // int32 [B, S, G, n], the output of SelectBlocks
  ConstTensor doc_start;  // optional int32 [B, S]
  int64_t step = 0;       // chooses the queries
  int32_t queries = 0;    // N, 1 to kAuditedQueries
  Tensor chosen;          // int32 [N, ChoiceWidth()], overwritten
};

// Values of a row of `chosen`: the first token of the query's document, the query's blocks [G, n],
// and those of the token before it [G, n], which are all −1 if that is in another document.
NSA_HOST_DEVICE int32_t ChoiceWidth(const NsaShape& shape) {
  return 1 + 2 * shape.n_kv_groups * shape.n_sel;
}

// Errors: InvalidArgument when the shape is outside its limits or a tensor differs from its shape.
absl::Status AuditChoices(const Exec& exec, const AuditChoicesArgs& args);

// Statistics of those lists (SelectionChoice in proto/nsa/v1/telemetry.proto). A free choice is a
// chosen block that is not forced (select_blocks.h), at a query that has more candidates than n.
struct ChoiceStats {
  int32_t rows = 0;                // sampled (query, group) pairs
  double window_overlap = 0;       // share of the selected tokens that are in the window, too
  double entropy = 0;              // of the free choices over the blocks, as a share of the largest
  double neighbour_agreement = 0;  // share of free choices that the token before has made, too
  int64_t free_choices = 0;
};

// `chosen` is in host memory. Without the window branch the overlap is 0.
ChoiceStats SummariseChoices(const NsaShape& shape, int64_t step, bool has_window,
                             std::span<const int32_t> chosen);

}  // namespace nsa

// The same on a GPU (audit.cu); the function above has checked the arguments.
namespace nsa::cuda {

absl::Status AuditAttention(const Exec& exec, const AuditArgs& args);
absl::Status AuditChoices(const Exec& exec, const AuditChoicesArgs& args);

}  // namespace nsa::cuda
