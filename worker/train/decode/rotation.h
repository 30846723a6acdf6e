// RoPE (kernels/nn/rope.h) of tokens at any position of a sequence, with qk_norm of normalized
// heads; the kernel's rows begin at position 0.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/nsa/layer/nsa_layer.h"

namespace nsa::train {

class Rotation {
 public:
  explicit Rotation(const NsaLayerConfig& config);

  // Computes the angles of positions first … first + rows − 1; all layers that rotate use the same.
  void SetPositions(int64_t first, int64_t rows);

  // y ← x rotated (with qk_norm normalized before), for `heads` heads of dk numbers of row `row` of
  // those positions; y may be x. `weight` [dk] multiplies the columns of normalized heads; null:
  // there is none. `turns`: false in a layer without rotation, which only normalizes.
  void Rotate(int64_t row, int32_t heads, bool turns, const float* weight, const float* x,
              float* y) const;

 private:
  const double scale_;
  const bool normalize_;
  const float eps_;
  std::vector<double> frequency_;  // [dk/2]
  std::vector<float> cos_, sin_;   // [rows, dk/2]
};

}  // namespace nsa::train
