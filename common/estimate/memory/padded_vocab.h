// How wide logits are on a GPU.
#pragma once

#include <cstdint>

namespace nsa {

// The vocabulary rounded up to a multiple of 128: a matrix product whose rows begin at addresses
// that are no multiple of 16 bytes takes several times as long.
constexpr int64_t PaddedVocab(int64_t vocab) { return (vocab + 127) / 128 * 128; }

}  // namespace nsa
