// Draws a token from the distribution that a model's logits give.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace nsa::train {

struct DrawOptions {
  double temperature = 0.8;  // divides the logits; 0: always the most probable token
  int64_t top_k = 0;         // only the k most probable tokens; 0: all
  double top_p = 1;          // only the most probable tokens that together have this probability
};

// InvalidArgument "temperature: -1 (at least 0); …" when a number is outside its range.
absl::Status CheckDraw(const DrawOptions& options);

// Draws a token; `uniform` is a random number in [0, 1). Never returns `excluded`, a token or −1.
// First top_k and then top_p take tokens away, by their probability at this temperature without
// the excluded one, the lower token first where two are equal; at least one is left. What is left
// keeps its proportions.
int32_t DrawToken(std::span<const float> logits, const DrawOptions& options, double uniform,
                  int32_t excluded);

}  // namespace nsa::train
