// An exp() that compilers can vectorise. The C library's exp() is one call per element,
// which takes half of the time of a small model's step. No branches; one element gives the same
// bits as eight.
#pragma once

#include <bit>
#include <cstdint>

namespace nsa {

// Splits x = n·ln 2 + r with |r| ≤ ln 2 / 2 and computes e^r, for a float or a vector of floats.
// The caller handles the ends of the range. Cody–Waite reduction, then the polynomial of Cephes.
template <class T>
struct ExpParts {
  T shifted;  // its low bits are n
  T n;
  T exp_r;
};
template <class T>
inline ExpParts<T> ReduceExp(T x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  ExpParts<T> out;
  out.shifted = x * 1.44269504088896341f + kRound;
  out.n = out.shifted - kRound;
  const T r = (x - out.n * 0.693359375f) - out.n * -2.12194440e-4f;
  T p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  out.exp_r = p * r * r + r + 1.0f;
  return out;
}

// e^x to within 2 units in the last place for −87.3 ≤ x ≤ 88. Arguments outside are clamped to that
// range (so e^−∞ is 1.2e-38, not 0). NaN gives NaN.
inline float VectorExp(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.0f ? 88.0f : x;
  const ExpParts<float> parts = ReduceExp(x);
  // The low bits of `shifted` are n; with the bias added, in the exponent field, they give 2^n.
  const uint32_t exponent = (std::bit_cast<uint32_t>(parts.shifted) + 127u) << 23;
  return parts.exp_r * std::bit_cast<float>(exponent);
}

}  // namespace nsa
