#include "worker/train/decode/rotation.h"

#include <algorithm>
#include <cmath>

namespace nsa::train {
namespace {

// y ← x / √(mean(x²) + eps); y may be x.
void Normalize(size_t width, float eps, const float* x, float* y) {
  float squares = 0;
  for (size_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
  for (size_t i = 0; i < width; ++i) y[i] = x[i] * r;
}

}  // namespace

Rotation::Rotation(const NsaLayerConfig& config)
    : scale_(config.rope_scale),
      normalize_(config.qk_norm),
      eps_(config.norm_eps),
      frequency_(config.shape.d_k / 2) {
  for (size_t i = 0; i < frequency_.size(); ++i) {
    frequency_[i] =
        RopeFrequency(config.rope_base, static_cast<int>(i), config.shape.d_k, config.rope_scaling);
  }
}

void Rotation::SetPositions(int64_t first, int64_t rows) {
  const size_t pairs = frequency_.size();
  cos_.resize(rows * pairs);
  sin_.resize(rows * pairs);
  for (int64_t row = 0; row < rows; ++row) {
    const double position = static_cast<double>(first + row) / scale_;
    for (size_t i = 0; i < pairs; ++i) {
      const double theta = position * frequency_[i];
      cos_[row * pairs + i] = static_cast<float>(std::cos(theta));
      sin_[row * pairs + i] = static_cast<float>(std::sin(theta));
    }
  }
}

void Rotation::Rotate(int64_t row, int32_t heads, bool turns, const float* weight, const float* x,
                      float* y) const {
  const size_t pairs = frequency_.size();
  const float* cos = cos_.data() + row * pairs;
  const float* sin = sin_.data() + row * pairs;
  for (int32_t a = 0; a < heads; ++a) {
    const float* from = x;
    if (normalize_) {
      Normalize(2 * pairs, eps_, x, y);
      for (size_t i = 0; weight != nullptr && i < 2 * pairs; ++i) y[i] *= weight[i];
      from = y;
    }
    if (!turns && from != y) std::copy_n(from, 2 * pairs, y);
    for (size_t i = 0; turns && i < pairs; ++i) {
      const float x0 = from[2 * i], x1 = from[2 * i + 1];
      y[2 * i] = x0 * cos[i] - x1 * sin[i];
      y[2 * i + 1] = x0 * sin[i] + x1 * cos[i];
    }
    x += 2 * pairs;
    y += 2 * pairs;
  }
}

}  // namespace nsa::train
