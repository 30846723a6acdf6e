// Which keys a query may see in each branch of the attention: the one definition. The CPU's key
// ranges, the GPU's tiles, the expected counts of keys and the estimate all follow from it.
//
// A branch has a BranchRule. Its functions take positions within one sequence:
//   Keys(s, t, first)           the keys that the query at t may see
//   KeysRead(s, t, first)       how many keys the query at t reads
//   Tokens(s, begin, end)       the tokens that may see at least one of the keys begin … end − 1
//   TokensOfAll(s, begin, end)  the tokens that see all of them, in a sequence of one document
// `first` is the first token of t's document, 0 without documents. `s` is an NsaShape, or whatever
// else has its fields seq_len, l, d, l_sel, n_sel and window, such as the kernels' own copy on a
// GPU. The letters are those of nsa_shape.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/base/branch.h"
#include "common/base/nsa_shape.h"

#ifdef __CUDACC__
#define NSA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define NSA_HOST_DEVICE inline
#endif

namespace nsa {

struct KeyRange {
  int32_t begin, end;  // keys begin … end − 1; none when end ≤ begin
};
struct TokenRange {
  int32_t begin, end;  // tokens begin … end − 1; none when end ≤ begin
};
// Tokens `from` … `to`, both included; `to` may lie behind the sequence.
struct TokenBounds {
  int32_t from, to;
};

NSA_HOST_DEVICE KeyRange Intersection(KeyRange a, KeyRange b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

// The tokens of selection block j; the last block may reach beyond the sequence.
template <class Sizes>
NSA_HOST_DEVICE KeyRange SelectionBlock(const Sizes& s, int32_t j) {
  return {j * s.l_sel, (j + 1) * s.l_sel};
}

// The selection blocks from which the query at t chooses: its document's first to its own.
template <class Sizes>
NSA_HOST_DEVICE KeyRange CandidateBlocks(const Sizes& s, int32_t t, int32_t first) {
  return {first / s.l_sel, t / s.l_sel + 1};
}

template <Branch kBranch>
struct BranchRule;

// Compressed: the keys are compression blocks. A query sees those that begin in its document and
// end at or before it: first ≤ i·d and i·d + l − 1 ≤ t.
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

// Selected: the keys are tokens. A query may see those of its document up to itself, as far as
// they lie in the blocks that it chose. KeysRead() is for a choice of SelectBlocks, which fills
// all n slots when there are so many candidates, and always takes the first, the last but one and
// the last candidate.
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
    // The first block is cut at the document's start, the last at t; the others are whole.
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

// Window: the keys are tokens. A query sees the last w of its document, itself included. Tokens()
// and TokensOfAll() want w ≤ S.
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

// Keys that a branch reads over the (b, g, t) rows of a call, once for the heads of a group:
// B·G·Σ_t KeysRead(t). `doc_start` is [B, S], or empty without documents. For a shape that
// Validate() accepts; O(S), or O(B·S) with documents.
int64_t KeysRead(const NsaShape& shape, Branch branch, std::span<const int32_t> doc_start = {});

// The mean over the positions of a sequence without documents.
std::array<double, kBranches> MeanKeysRead(const NsaShape& shape);

}  // namespace nsa
