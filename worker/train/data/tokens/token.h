// A token on its way from a text or a file to a row.
#pragma once

#include <cstdint>
#include <span>

#include "common/job/data_source.h"

namespace nsa::train {

// 0 to kMostTokens − 1. Signed, because rows, batches and kernels have int32 tokens.
using Token = int32_t;

// The bytes that a token takes where many are kept, by the vocabulary: 1 up to 256, 2 up to 65,536,
// else 4, as have tokens with marks.
constexpr int TokenBytes(int32_t vocab, bool marked = false) {
  return marked || vocab > 65536 ? 4 : vocab <= 256 ? 1 : 2;
}

// Marks of the tokens of conversations, above kMostTokens: one that is learned, and the first of a
// document. Everything that only moves tokens need not know of them.
inline constexpr Token kAnswerMark = 1 << 30;
inline constexpr Token kBeginMark = 1 << 29;
static_assert(kMostTokens <= kBeginMark);
constexpr Token WithoutMarks(Token token) { return token & ~(kAnswerMark | kBeginMark); }

// Writes tokens as `width` bytes each (1, 2 or 4), little-endian, to `to`, which has room for them.
// Every token must fit.
void PackTokens(std::span<const Token> tokens, int width, void* to);

// The reverse: reads tokens.size() tokens from `from`.
void UnpackTokens(const void* from, int width, std::span<Token> tokens);

}  // namespace nsa::train
