// A token on its way from a text or a file to a row.
#pragma once

#include <cstdint>
#include <span>

#include "common/job/data_source.h"

namespace nsa::train {

// 0 to kMostTokens − 1. Signed, because rows, batches and kernels have int32 tokens.
using Token = int32_t;

// The bytes that a token takes where many are kept, by the vocabulary: 1 up to 256, 2 up to 65,536,
// else 4.
constexpr int TokenBytes(int32_t vocab) { return vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4; }

// Writes tokens as `width` bytes each (1, 2 or 4), little-endian, to `to`, which has room for them.
// Every token must fit.
void PackTokens(std::span<const Token> tokens, int width, void* to);

// The reverse: reads tokens.size() tokens from `from`.
void UnpackTokens(const void* from, int width, std::span<Token> tokens);

}  // namespace nsa::train
