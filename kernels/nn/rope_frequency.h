// The frequencies of rotary pairs, and how they are stretched for texts that are longer than those
// of the first training.
//
//   f_i = base^(−2i/dk),   i = 0 … dk/2−1         radians per position
//
// Stretched, pair i has (1 − e_i) · f_i / factor + e_i · f_i, where e_i is
//
//   llama3   0 below `low` turns in `original` tokens, 1 above `high`, linear in the turns between
//   yarn     1 at the pair with `high` turns and before it, 0 at the one with `low` turns and
//            behind it, linear in i between; both pairs are rounded outwards (arXiv 2309.00071)
//
// YaRN's factor on the logits is left out: the weights of the queries can have it.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/status.h"

namespace nsa {

// As the scale that divides positions: nothing is rotated.
inline constexpr float kNoRotation = std::numeric_limits<float>::infinity();

struct RopeScaling {
  enum class Kind : uint8_t { kNone, kLlama3, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1;    // 1 or more
  double original = 1;  // tokens, 1 or more
  double low = 1;       // turns, above 0
  double high = 4;      // turns, above `low`
};

// InvalidArgument, naming the field, when a number is outside its limits. Without a kind none is
// looked at.
absl::Status Validate(const RopeScaling& scaling);

// Radians per position of pair `pair` of a head of `head_dim` columns; base > 1.
double RopeFrequency(double base, int pair, int head_dim, const RopeScaling& scaling);

}  // namespace nsa
