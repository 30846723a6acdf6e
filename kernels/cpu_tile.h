// Small matrix products and the exponential for the CPU kernels, on vectors of eight floats.
// CPU only, header-only so that they are inlined; included from .cc files of kernels/.
//
// The code uses the vector extensions of GCC and clang, which compile to the vector instructions of
// the target. Each sum runs over k in ascending order, whatever m and n are, so a row's result does
// not depend on the other rows.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/vector_exp.h"

namespace nsa::cpu {

inline constexpr int kLanes = 8;
inline constexpr int kPanel = 2 * kLanes;  // columns that MatMul computes at a time

typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));

inline F8 Load(const float* p) {
  F8 x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
inline void Store(float* p, F8 x) { std::memcpy(p, &x, sizeof(x)); }
inline F8 Splat(float x) { return F8{x, x, x, x, x, x, x, x}; }

constexpr int64_t RoundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// exp(x) to 2 ulp; 0 below −87.3 (no denormals), inf above 88.7, NaN for NaN.
inline F8 Exp(F8 x) {
  const F8 lowest = Splat(-87.3f), highest = Splat(88.8f);
  F8 y = x < lowest ? lowest : x;
  y = y > highest ? highest : y;
  const ExpParts<F8> parts = ReduceExp(y);
  // 2^n is computed as two factors, since 2^128 is not representable as a float.
  const I8 whole = __builtin_convertvector(parts.n, I8);
  const I8 half = whole >> 1;
  const I8 one_bits = (half + 127) << 23, two_bits = (whole - half + 127) << 23;
  F8 one, two;
  std::memcpy(&one, &one_bits, sizeof(one));
  std::memcpy(&two, &two_bits, sizeof(two));
  const F8 p = parts.exp_r * one * two;
  return x < lowest ? Splat(0) : p;
}

// An operand read as a[row · row_step + k · k_step], so that it can be read transposed.
struct Strided {
  const float* data;
  int64_t row_step;
  int64_t k_step;
};

// kRows × 16 elements of C, in registers.
template <int kRows, bool kAdd>
inline void MatMulTile(int64_t k, Strided a, const float* b, int64_t ldb, float* c, int64_t ldc) {
  F8 sum[kRows][2];
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = kAdd ? Load(c + i * ldc) : Splat(0);
    sum[i][1] = kAdd ? Load(c + i * ldc + kLanes) : Splat(0);
  }
  for (int64_t x = 0; x < k; ++x) {
    const F8 b0 = Load(b + x * ldb), b1 = Load(b + x * ldb + kLanes);
    for (int i = 0; i < kRows; ++i) {
      const F8 value = Splat(a.data[i * a.row_step + x * a.k_step]);
      sum[i][0] += value * b0;
      sum[i][1] += value * b1;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    Store(c + i * ldc, sum[i][0]);
    Store(c + i * ldc + kLanes, sum[i][1]);
  }
}

// C[m, n] = A[m, k] · B[k, n], or C += when kAdd. B and C are row-major with row steps ldb and ldc.
// B is read and C is written up to n rounded up to 16 columns: each of their rows needs that space.
template <bool kAdd>
inline void MatMul(int64_t m, int64_t n, int64_t k, Strided a, const float* b, int64_t ldb,
                   float* c, int64_t ldc) {
  for (int64_t j = 0; j < n; j += kPanel) {
    Strided rows = a;
    float* out = c + j;
    int64_t left = m;
    const auto advance = [&](int64_t done) {
      rows.data += done * a.row_step;
      out += done * ldc;
      left -= done;
    };
    while (left >= 6) {
      MatMulTile<6, kAdd>(k, rows, b + j, ldb, out, ldc);
      advance(6);
    }
    if (left >= 4) {
      MatMulTile<4, kAdd>(k, rows, b + j, ldb, out, ldc);
      advance(4);
    }
    if (left >= 2) {
      MatMulTile<2, kAdd>(k, rows, b + j, ldb, out, ldc);
      advance(2);
    }
    if (left >= 1) MatMulTile<1, kAdd>(k, rows, b + j, ldb, out, ldc);
  }
}

// out[c · ldo + r] = x[r · ldx + c].
inline void Transpose(int64_t rows, int64_t columns, const float* x, int64_t ldx, float* out,
                      int64_t ldo) {
  constexpr int64_t kBlock = 16;  // rows whose cache lines are written together
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const int64_t r1 = r0 + kBlock < rows ? r0 + kBlock : rows;
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = r0; r < r1; ++r) out[c * ldo + r] = x[r * ldx + c];
    }
  }
}

}  // namespace nsa::cpu
