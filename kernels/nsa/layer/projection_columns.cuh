// What the kernels that split and join projections share: the columns of `wide`, and where a chunk
// of eight of them belongs. projections.cu has the kernels that only rotate,
// normalized_projections.cu those that normalize too (qk_norm), which need all chunks of a head
// side by side.
#pragma once

#include "absl/status/status.h"
#include "kernels/nn/rope_angles.cuh"
#include "kernels/nsa/layer/projections.h"

namespace nsa::cuda {

constexpr int kThreads = 256;
constexpr int kTokens = 8;  // of a thread block
constexpr int kMostParts = 1 + 2 * kBranches;

// The columns of `wide`. Part 0 is q, odd parts are keys, the other even parts are values. Widths
// are in chunks of 8 columns.
struct Columns {
  int begin[kMostParts + 1];
  int count;
  int head_chunks;                            // of a head of q or of the keys
  unsigned int head_factor;                   // ⌈2³² / head_chunks⌉
  int seq_len, first, heads_a_group, groups;  // first: position
  int branch[kMostParts];                     // of the keys and values
  const int* at;                              // SplitProjectionsArgs::at, may be null
  int64_t rows;

  // The head of chunk `column` of q or of the keys, and the chunk's place in it.
  __device__ int HeadOf(int column) const { return __umulhi(column, head_factor); }
  __device__ int InHead(int column) const { return column - HeadOf(column) * head_chunks; }
};

inline RopeFrequencies FrequenciesOf(const NsaLayerConfig& config) {
  return FrequenciesOf(config.shape.d_k, config.rope_base, config.rope_scale, config.rope_scaling);
}

inline Columns ColumnsOf(const NsaLayerConfig& config) {
  const NsaShape& s = config.shape;
  Columns c{};
  c.rows = int64_t{1} * s.batch * s.seq_len;
  c.seq_len = s.seq_len, c.groups = s.n_kv_groups, c.heads_a_group = s.heads_per_group();
  c.head_chunks = s.d_k / 8;
  c.head_factor =
      static_cast<unsigned int>(((int64_t{1} << 32) + c.head_chunks - 1) / c.head_chunks);
  c.begin[c.count = 1] = s.n_heads * s.d_k / 8;
  for (int branch = 0; branch < config.n_branches(); ++branch) {
    for (const int width : {s.d_k, s.d_v}) {
      c.begin[c.count + 1] = c.begin[c.count] + s.n_kv_groups * width / 8;
      ++c.count;
    }
  }
  return c;
}

// The position of a chunk among those of a thread block's tokens.
struct Place {
  int token, part, column;  // column within the part
  int64_t in_part;          // chunks from the beginning of the part's tensor

  // The same in a cache that holds the tokens from position `at[1 + branch]` on.
  __device__ int64_t InCache(const Columns& c) const {
    if (c.at == nullptr || part == 0) return in_part;
    const int64_t rows = c.at[0] - c.at[1 + c.branch[part]];
    return in_part + rows * (c.begin[part + 1] - c.begin[part]);
  }
  __device__ bool turned() const { return part == 0 || part % 2 == 1; }
  // The angles of the chunk's four pairs.
  __device__ const float2* AnglesIn(const float2* angles, const Columns& c) const {
    return angles + 4 * (token * c.head_chunks + c.InHead(column));
  }
};

struct SplitParts {
  bf16* to[kMostParts];
  bf16* q_rotated;
};

struct JoinParts {
  const bf16* from[kMostParts];
  const bf16* dq_mean;  // may be null
};

// RopeArgs::rstd of the parts that are rotated; a null pointer is not written.
// With weights of normalized heads also these, and where the heads before them go.
struct SplitNorm {
  float eps;
  float* rstd[kMostParts];
  const bf16* q_weight;  // null without weights
  const bf16* k_weight;
  bf16* unit[kMostParts];
};

// What forward wrote: the rotated heads, with weights the heads before them.
struct JoinNorm {
  const bf16* heads[kMostParts];
  const float* rstd[kMostParts];
  const bf16* q_weight;  // null without weights
  const bf16* k_weight;
};

absl::Status SplitNormalized(const Exec& exec, const Columns& c, const RopeFrequencies& f,
                             const bf16* wide, const SplitParts& parts, const SplitNorm& norm);
absl::Status JoinNormalized(const Exec& exec, const Columns& c, const RopeFrequencies& f,
                            const JoinParts& parts, const JoinNorm& norm, bf16* wide);

// The heads of one part, whose gradient dy is that of the rotated ones, and heads before weights.
struct HeadWeights {
  int64_t count;  // heads of all tokens
  int heads;      // of a token
  int seq_len, d_k;
  const bf16 *dy, *unit;
  float* dweight;  // [dk], added to
};
absl::Status HeadWeightGradient(const Exec& exec, const HeadWeights& heads,
                                const RopeFrequencies& f);

}  // namespace nsa::cuda
