// Named shapes, random inputs and error bounds of fp32 results for the tests of kernels/nsa.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/nsa/nsa_shape.h"
#include "tests/testing/compare.h"

namespace nsa::testing {

struct Case {
  std::string intent;
  NsaShape shape;
};
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.intent; }

// Names a parameterised test after its case: letters and digits stay, everything else becomes "_".
struct CaseName {
  template <class ParamInfo>
  std::string operator()(const ParamInfo& param_info) const {
    std::string name;
    for (const char c : param_info.param.intent)
      name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    return name;
  }
};

// Each case is small enough for brute force over all keys.
inline std::vector<Case> SmallCases() {
  // {B, S, H, G, dk, dv, l, d, l', n, w}
  return {
      {"regular", {2, 64, 4, 2, 16, 16, 8, 4, 8, 4, 16}},
      {"ragged S", {1, 61, 4, 2, 16, 16, 8, 4, 8, 4, 16}},
      {"one token", {1, 1, 2, 1, 16, 16, 8, 4, 8, 3, 4}},
      {"S below l", {2, 7, 2, 1, 16, 16, 8, 4, 8, 3, 4}},
      {"S below l_sel and w", {1, 20, 2, 1, 16, 16, 8, 4, 32, 3, 64}},
      {"S equals l", {1, 8, 2, 2, 16, 16, 8, 8, 8, 3, 8}},
      {"everything selected", {1, 40, 2, 1, 16, 16, 8, 4, 8, 8, 8}},
      {"one head a group", {1, 33, 3, 3, 16, 16, 4, 2, 4, 3, 5}},
      {"six heads a group, width 64", {1, 40, 12, 2, 64, 64, 8, 4, 8, 3, 12}},
      {"sixteen heads a group", {1, 24, 16, 1, 16, 16, 4, 4, 4, 3, 6}},
      {"narrow keys, wide values", {1, 30, 5, 1, 16, 128, 4, 2, 4, 3, 9}},
      {"wide keys, narrow values", {1, 30, 3, 1, 128, 32, 4, 2, 4, 3, 9}},
      {"blocks without overlap", {1, 48, 2, 1, 32, 32, 8, 8, 16, 3, 10}},
      {"l_sel is no multiple of l", {1, 50, 2, 1, 16, 16, 8, 4, 12, 3, 10}},
      {"a block covers several l_sel", {1, 48, 2, 1, 16, 16, 16, 2, 4, 4, 10}},
      {"blocks and window of one token", {1, 17, 2, 1, 16, 16, 1, 1, 1, 3, 1}},
      {"widths of the paper", {2, 31, 4, 2, 192, 128, 4, 2, 4, 3, 9}},
      {"keys of 192, narrow values", {1, 26, 3, 1, 192, 16, 4, 2, 4, 3, 9}},
  };
}

// The smallest shape in which every branch does something, for element-by-element gradients.
inline NsaShape TinyShape() { return {1, 10, 4, 2, 16, 16, 4, 2, 2, 3, 4}; }

// U(−1, 1)·scale, the same on every machine.
inline std::vector<float> Random(int64_t size, uint32_t seed, float scale = 1) {
  std::mt19937 engine(seed);
  std::vector<float> values(size);
  for (float& x : values) {
    x = scale * (static_cast<float>(engine() >> 8) * 0x1p-23f - 1.0f);
  }
  return values;
}

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// Initial values of an output. None may remain, since kernels overwrite all of it.
inline std::vector<float> Poisoned(int64_t size) { return std::vector<float>(size, kPoison); }

inline std::vector<double> Double(std::span<const float> values) {
  return {values.begin(), values.end()};
}
inline std::vector<double> Double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// Bound of an attention output with |q|, |k|, |v| ≤ 1, in fp32 with unit roundoff u = 2^-24.
// Products of such numbers have mean 0 and RMS 1/3, so errors add up like a random walk:
//   score: partial sums of i products have RMS √i/3; the rounding errors of dk such sums add up to
//          u·√(Σ i/9) = u·dk/(3√2), and the scale 1/√dk leaves u·√dk/4;
//   p:     its relative error is the error of its score, plus 2u of exp, plus u of the division;
//   o:     a convex combination: the relative error of p times |v| ≤ 1.
// With λ = 4 times that size, exceeding the bound is improbable even for 10^6 elements.
inline constexpr double kUnit = 0x1p-24, kLambda = 4;

inline double OutputBound(const NsaShape& s) {
  return kLambda * kUnit * (std::sqrt(s.d_k) / 4 + 3);
}

// Bound of a gradient with |d_o| ≤ 1. ds = p (dp − δ)/√dk has the relative errors of p and of
// dp = d_o·v (√dv/4, as for a score), and |dp|/√dk is of size √(dv/dk)/3. dq sums ds with Σ p ≤ 1;
// dk and dv sum over the h heads and the few queries whose weight p for the key is near 1: 2√h.
inline double GradientBound(const NsaShape& s) {
  return kLambda * kUnit * (std::sqrt(s.d_k) / 4 + std::sqrt(s.d_v) / 4 + 3) *
         std::max(1.0, std::sqrt(static_cast<double>(s.d_v) / s.d_k)) * 2 *
         std::sqrt(s.heads_per_group());
}

inline Dims QueryDims(const NsaShape& s, int64_t width) {
  return {{"b", s.batch}, {"t", s.seq_len}, {"a", s.n_heads}, {"c", width}};
}
inline Dims KeyDims(const NsaShape& s, int64_t keys, int64_t width) {
  return {{"b", s.batch}, {"j", keys}, {"g", s.n_kv_groups}, {"c", width}};
}

}  // namespace nsa::testing
