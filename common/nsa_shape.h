// The shape of NSA attention and its limits: what preflight promises and what every kernel checks,
// in one place.
//
// Letters, here and in every kernel: B batch, S tokens, H query heads, G key/value groups, h = H/G
// heads a group, dk and dv head widths, l tokens a compression block, d its stride, l' (l_sel)
// tokens a selection block, n (n_sel) selected blocks, w window, t a 0-based position. Block i of
// the compression covers tokens [i·d, i·d + l); block j of the selection covers [j·l', (j+1)·l').
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace nsa {

struct NsaShape {
  int32_t batch = 0;        // B
  int32_t seq_len = 0;      // S
  int32_t n_heads = 0;      // H
  int32_t n_kv_groups = 0;  // G
  int32_t d_k = 0;          // dk
  int32_t d_v = 0;          // dv
  int32_t l = 0;
  int32_t d = 0;
  int32_t l_sel = 0;   // l'
  int32_t n_sel = 0;   // n
  int32_t window = 0;  // w

  // h, query heads a group.
  int32_t heads_per_group() const { return n_heads / n_kv_groups; }

  // S_cmp: compression blocks that lie wholly within S; 0 when S < l.
  int32_t cmp_blocks() const { return seq_len < l ? 0 : (seq_len - l) / d + 1; }

  // S_sel: selection blocks, the last one possibly ragged.
  int32_t sel_blocks() const { return (seq_len + l_sel - 1) / l_sel; }

  // Compression blocks that position t may see: those with i·d + l − 1 ≤ t.
  int32_t visible_cmp_blocks(int32_t t) const { return t + 1 < l ? 0 : (t + 1 - l) / d + 1; }

  // Selection blocks that position t may choose from: 0 … c with c = ⌊t/l'⌋, the block of t
  // included.
  int32_t visible_sel_blocks(int32_t t) const { return t / l_sel + 1; }

  // First key of t's window.
  int32_t window_start(int32_t t) const { return t + 1 < window ? 0 : t + 1 - window; }

  // Tokens · heads of q: B·S·H·dk and the like, 64-bit.
  int64_t q_size() const { return int64_t{1} * batch * seq_len * n_heads * d_k; }
  int64_t k_size() const { return int64_t{1} * batch * seq_len * n_kv_groups * d_k; }
  int64_t v_size() const { return int64_t{1} * batch * seq_len * n_kv_groups * d_v; }
  int64_t o_size() const { return int64_t{1} * batch * seq_len * n_heads * d_v; }
  int64_t cmp_k_size() const { return int64_t{1} * batch * cmp_blocks() * n_kv_groups * d_k; }
  int64_t cmp_v_size() const { return int64_t{1} * batch * cmp_blocks() * n_kv_groups * d_v; }
  int64_t blocks_size() const { return int64_t{1} * batch * seq_len * n_kv_groups * n_sel; }

  // InvalidArgument naming the first field that is outside the limits, as `field: value (limit);
  // what to do`. The limits are:
  //   B ≥ 1; 1 ≤ S ≤ 1,048,576; H ≥ 1; G ≥ 1 and divides H; 1 ≤ h ≤ 16; dk, dv ∈ {16, 32, 64, 128};
  //   1 ≤ d ≤ l ≤ 128; d divides l and l'; 1 ≤ l' ≤ 256; 3 ≤ n ≤ 64 (three blocks are forced); 1 ≤
  //   w; B·S·H ≤ 2^31 − 1.
  // S < l, S < l', S < w, n ≥ S_sel and ragged S are all valid.
  absl::Status Validate() const;

  // The same, and what CUDA's kernels ask for on top: S_sel ≤ 16,384, since a mark for each of a
  // sequence's selection blocks lies in shared memory (kernels/nsa/selected_lists.cuh); l ≤ 8 l',
  // since the scores of the blocks that a few compressed keys overlap do.
  absl::Status ValidateOnCuda() const;

  // "B=2 S=2048 H=12 G=2 dk=64 dv=64 l=32 d=16 l'=64 n=16 w=512", for messages.
  std::string ToString() const;
};

}  // namespace nsa
