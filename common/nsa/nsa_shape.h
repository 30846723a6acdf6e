// The shape of NSA attention and its limits. Preflight and every kernel check the same limits.
//
// Notation, here and in every kernel: B batch size, S tokens in a sequence, H query heads, G
// key/value groups, h = H/G query heads in a group, dk and dv head widths, l tokens in a
// compression block, d the stride of compression blocks, l' (l_sel) tokens in a selection block, n
// (n_sel) selected blocks, w window, t a 0-based position. Compression block i covers tokens
// [i·d, i·d + l); selection block j covers tokens [j·l', (j+1)·l').
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace nsa {

// A field of a shape that is outside its limits.
struct ShapeProblem {
  const char* field = "";  // "batch", "seq_len", "n_heads", "n_kv_groups", "d_k", "d_v", "l", "d",
                           // "l_sel", "n_sel", "w"
  int64_t value = 0;
  std::string limit;  // "3 to 64, three blocks are forced"
  std::string fix;    // "take a number within, e.g. 16"

  absl::Status ToStatus() const;
};

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

  // h, query heads in a group.
  int32_t heads_per_group() const { return n_heads / n_kv_groups; }

  // S_cmp: compression blocks that lie entirely within S; 0 if S < l.
  int32_t cmp_blocks() const { return seq_len < l ? 0 : (seq_len - l) / d + 1; }

  // S_sel: selection blocks; the last one may be incomplete.
  int32_t sel_blocks() const { return (seq_len + l_sel - 1) / l_sel; }

  // The same with a window of all tokens.
  NsaShape Full() const {
    NsaShape full = *this;
    full.window = seq_len;
    return full;
  }

  // Numbers of elements of the tensors, e.g. B·S·H·dk for q.
  int64_t q_size() const { return int64_t{1} * batch * seq_len * n_heads * d_k; }
  int64_t k_size() const { return int64_t{1} * batch * seq_len * n_kv_groups * d_k; }
  int64_t v_size() const { return int64_t{1} * batch * seq_len * n_kv_groups * d_v; }
  int64_t o_size() const { return int64_t{1} * batch * seq_len * n_heads * d_v; }
  int64_t cmp_k_size() const { return int64_t{1} * batch * cmp_blocks() * n_kv_groups * d_k; }
  int64_t cmp_v_size() const { return int64_t{1} * batch * cmp_blocks() * n_kv_groups * d_v; }
  int64_t blocks_size() const { return int64_t{1} * batch * seq_len * n_kv_groups * n_sel; }

  // The first field that is outside its limits; nothing if the shape is valid. The limits are:
  //   B ≥ 1; 1 ≤ S ≤ 1,048,576; H ≥ 1; G ≥ 1 and divides H; 1 ≤ h ≤ 16; dk, dv ∈ {16, 32, 64, 128},
  //   dk also 192; 1 ≤ d ≤ l ≤ 128; d divides l and l'; 1 ≤ l' ≤ 256; 3 ≤ n ≤ 64 (three blocks are
  //   always selected); w ≥ 1; B·S·H ≤ 2^31 − 1.
  // S < l, S < l', S < w, n ≥ S_sel and an S that is not a multiple of l or l' are valid.
  std::optional<ShapeProblem> FindProblem() const;

  // The same with two more limits of the CUDA kernels. S_sel ≤ 16,384: shared memory has a mark for
  // each selection block of a sequence (kernels/nsa/branch/selected/lists.cuh). l ≤ 8 l': shared
  // memory also has the scores of all selection blocks that a few compressed keys overlap.
  std::optional<ShapeProblem> FindProblemOnCuda() const;

  // The problem as InvalidArgument `field: value (limit); what to do`; OK if there is none.
  absl::Status Validate() const;
  absl::Status ValidateOnCuda() const;

  // "B=2 S=2048 H=12 G=2 dk=64 dv=64 l=32 d=16 l'=64 n=16 w=512", for messages.
  std::string ToString() const;
};

}  // namespace nsa
