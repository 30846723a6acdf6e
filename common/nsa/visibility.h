// The one definition of the keys that a query sees in each branch of the attention. The CPU's key
// ranges, the GPU's tiles, the expected numbers of keys and the estimate are all derived from it.
//
// Each branch has a BranchRule. Its functions take positions within one sequence:
//   Keys(s, t, first)           the keys that the query at t may see
//   KeysRead(s, t, first)       how many keys the query at t reads
//   Tokens(s, begin, end)       the tokens that may see at least one of the keys begin … end − 1
//   TokensOfAll(s, begin, end)  the tokens that see all of them, in a sequence of one document
// `first` is the first token of t's document; 0 without documents. `s` is an NsaShape or any struct
// with its fields seq_len, l, d, l_sel, n_sel and window, such as the kernels' own copy on a GPU.
// nsa_shape.h explains the notation.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"

#ifdef __CUDACC__
#define NSA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define NSA_HOST_DEVICE inline
#endif

namespace nsa {

struct KeyRange {
  int32_t begin, end;  // keys begin … end − 1; none if end ≤ begin
};
struct TokenRange {
  int32_t begin, end;  // tokens begin … end − 1; none if end ≤ begin
};
// Tokens `from` … `to`, both included; `to` may be after the end of the sequence.
struct TokenBounds {
  int32_t from, to;
};

NSA_HOST_DEVICE KeyRange Intersection(KeyRange a, KeyRange b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

// The tokens of selection block j; the last block may extend beyond the end of the sequence.
template <class Sizes>
NSA_HOST_DEVICE KeyRange SelectionBlock(const Sizes& s, int32_t j) {
  return {j * s.l_sel, (j + 1) * s.l_sel};
}

// The selection blocks that the query at t can select: from the first block of its document to the
// block that contains t.
template <class Sizes>
NSA_HOST_DEVICE KeyRange CandidateBlocks(const Sizes& s, int32_t t, int32_t first) {
  return {first / s.l_sel, t / s.l_sel + 1};
}

template <Branch kBranch>
struct BranchRule;

// Compressed: the keys are compression blocks. A query sees the blocks that begin in its document
// and end at t or before: first ≤ i·d and i·d + l − 1 ≤ t.
template <>
struct BranchRule<kCmp> {
  template <class Sizes>
  NSA_HOST_DEVICE static KeyRange Keys(const Sizes& s, int32_t t, int32_t first) {
    return {(first + s.d - 1) / s.d, t + 1 < s.l ? 0 : (t + 1 - s.l) / s.d + 1};
  }
  template <class Sizes>
  NSA_HOST_DEVICE static int32_t KeysRead(const Sizes& s, int32_t t, int32_t first) {
    const KeyRange keys = Keys(s, t, first);
    return keys.end > keys.begin ? keys.end - keys.begin : 0;
  }
  template <class Sizes>
  NSA_HOST_DEVICE static TokenRange Tokens(const Sizes& s, int32_t begin, int32_t /*end*/) {
    return {begin * s.d + s.l - 1, s.seq_len};
  }
  template <class Sizes>
  NSA_HOST_DEVICE static TokenBounds TokensOfAll(const Sizes& s, int32_t /*begin*/, int32_t end) {
    return {(end - 1) * s.d + s.l - 1, INT32_MAX};
  }
};

// Selected: the keys are tokens. A query may see the tokens of its document up to itself that are
// in the blocks it selected. KeysRead() assumes the selection of SelectBlocks, which fills all n
// slots if there are at least n candidates and always includes the first candidate and the last
// two.
template <>
struct BranchRule<kSel> {
  template <class Sizes>
  NSA_HOST_DEVICE static KeyRange Keys(const Sizes& /*s*/, int32_t t, int32_t first) {
    return {first, t + 1};
  }
  template <class Sizes>
  NSA_HOST_DEVICE static int32_t KeysRead(const Sizes& s, int32_t t, int32_t first) {
    const KeyRange blocks = CandidateBlocks(s, t, first);
    if (blocks.end - blocks.begin <= s.n_sel) return t + 1 - first;
    // The first block starts at the document's start and the last ends at t; the others are
    // complete.
    return ((blocks.begin + 1) * s.l_sel - first) + (s.n_sel - 2) * s.l_sel + (t % s.l_sel + 1);
  }
  template <class Sizes>
  NSA_HOST_DEVICE static TokenRange Tokens(const Sizes& s, int32_t begin, int32_t /*end*/) {
    return {begin, s.seq_len};
  }
  template <class Sizes>
  NSA_HOST_DEVICE static TokenBounds TokensOfAll(const Sizes& /*s*/, int32_t /*begin*/,
                                                 int32_t end) {
    return {end - 1, INT32_MAX};
  }
};

// Window: the keys are tokens. A query sees the last w tokens of its document, including itself.
// Tokens() and TokensOfAll() require w ≤ S.
template <>
struct BranchRule<kWin> {
  template <class Sizes>
  NSA_HOST_DEVICE static KeyRange Keys(const Sizes& s, int32_t t, int32_t first) {
    return {first > t + 1 - s.window ? first : t + 1 - s.window, t + 1};
  }
  template <class Sizes>
  NSA_HOST_DEVICE static int32_t KeysRead(const Sizes& s, int32_t t, int32_t first) {
    const KeyRange keys = Keys(s, t, first);
    return keys.end - keys.begin;
  }
  template <class Sizes>
  NSA_HOST_DEVICE static TokenRange Tokens(const Sizes& s, int32_t begin, int32_t end) {
    return {begin, s.seq_len < end - 1 + s.window ? s.seq_len : end - 1 + s.window};
  }
  template <class Sizes>
  NSA_HOST_DEVICE static TokenBounds TokensOfAll(const Sizes& s, int32_t begin, int32_t end) {
    return {end - 1, begin + s.window - 1};
  }
};

// Number of keys that a branch reads in all (b, g, t) rows of a call. The heads of a group share a
// row: B·G·Σ_t KeysRead(t). `doc_start` is [B, S], or empty without documents. The shape must be
// valid (NsaShape::Validate). O(S); O(B·S) with documents.
int64_t KeysRead(const NsaShape& shape, Branch branch, std::span<const int32_t> doc_start = {});

// Mean number of keys that each branch reads for a query, over the positions of a sequence without
// documents.
std::array<double, kBranches> MeanKeysRead(const NsaShape& shape);

}  // namespace nsa
