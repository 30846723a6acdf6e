// How much of the data data.val_fraction holds out. Preflight says it and the worker does it, and
// both ask here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace nsa {

// The least size of the passages that texts are divided into, so that some of them can be held out.
inline constexpr size_t kPassageBytes = 16 << 10;

// The held-out share is within this factor of what was asked for, wherever the data allows it.
inline constexpr double kHeldOutFactor = 1.5;

// Tokens for validation.
struct HeldOutTokens {
  int64_t sequence = 0;  // of one sequence and the token after it: less cannot be validated
  double asked = 0;      // the fraction of the tokens
  int64_t wanted = 0;    // as many as were asked for, but at least a sequence
  int64_t least = 0;     // fewer than this, or more than `most`, are not the share asked for
  int64_t most = 0;

  // Whether a sequence is more than was asked for.
  bool more_than_asked() const { return static_cast<double>(wanted) > kHeldOutFactor * asked; }
};

// Of `tokens` for training and validation together, with data.val_fraction and train.seq_len.
HeldOutTokens HeldOutTokensOf(int64_t tokens, double fraction, int32_t seq_len);

// What to say if `held_out` of `tokens` are not the share asked for, within kHeldOutFactor; empty
// if they are.
std::string HeldOutShareText(int64_t held_out, int64_t tokens, double fraction);

}  // namespace nsa
