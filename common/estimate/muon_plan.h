// How Muon's matrices (kernels/optimizer/muon.h) are divided into batches that are orthogonalized
// together, and the scratch memory of a batch. Pure; the kernels and the memory estimate share it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace nsa {

// The shape of matrices once the tall ones are transposed: p rows and q ≥ p columns.
struct MuonShape {
  int64_t p = 0;
  int64_t q = 0;

  static MuonShape Of(int64_t rows, int64_t columns) {
    return {std::min(rows, columns), std::max(rows, columns)};
  }
  auto operator<=>(const MuonShape&) const = default;
};

// A batch is as large as fits here, at least one matrix and at most kMuonMostMatrices. Larger ones
// are hardly faster: from a few dozen products of 768 rows on the GPU is full.
inline constexpr int64_t kMuonScratchBytes = int64_t{256} << 20;
inline constexpr int64_t kMuonMostMatrices = 64;
inline constexpr int64_t kMuonSums = 64;  // partial sums of squares of a matrix

// Where the parts of a batch begin in scratch memory, in bytes.
struct MuonScratch {
  int64_t x = 0, y = 0;  // [count, p, q]: the matrix before and after an iteration
  int64_t a = 0, b = 0;  // [count, p, p]: X Xᵀ and its polynomial
  int64_t sums = 0;      // double [count, kMuonSums]
  int64_t row_sums = 0;  // float [count, q]: Σ O² of a row of the weight, which has p or q rows
  int64_t factors = 0;   // float [count, q]: the factor of a row
  int64_t bytes = 0;

  // `width`: bytes of an element of the first four.
  static MuonScratch Of(const MuonShape& shape, int64_t count, int64_t width) {
    MuonScratch scratch;
    const auto take = [&scratch](int64_t size) {
      const int64_t at = scratch.bytes;
      scratch.bytes += (size + 255) / 256 * 256;
      return at;
    };
    scratch.x = take(count * shape.p * shape.q * width);
    scratch.y = take(count * shape.p * shape.q * width);
    scratch.a = take(count * shape.p * shape.p * width);
    scratch.b = take(count * shape.p * shape.p * width);
    scratch.sums = take(count * kMuonSums * static_cast<int64_t>(sizeof(double)));
    scratch.row_sums = take(count * shape.q * static_cast<int64_t>(sizeof(float)));
    scratch.factors = take(count * shape.q * static_cast<int64_t>(sizeof(float)));
    return scratch;
  }
};

// Matrices in the largest batch when there are `matrices` of this shape. Batches differ by one
// matrix at most. 0 when there are none.
inline int64_t MuonBatchSize(const MuonShape& shape, int64_t matrices, int64_t width) {
  if (matrices < 1) return 0;
  const int64_t one = std::max<int64_t>(MuonScratch::Of(shape, 1, width).bytes, 1);
  const int64_t most = std::clamp<int64_t>(kMuonScratchBytes / one, 1, kMuonMostMatrices);
  const int64_t batches = (matrices + most - 1) / most;
  return (matrices + batches - 1) / batches;
}

// Scratch memory of the largest batch when there are so many matrices of each shape.
inline int64_t MuonScratchBytes(const std::map<MuonShape, int64_t>& matrices, int64_t width) {
  int64_t bytes = 0;
  for (const auto& [shape, count] : matrices) {
    bytes =
        std::max(bytes, MuonScratch::Of(shape, MuonBatchSize(shape, count, width), width).bytes);
  }
  return bytes;
}

}  // namespace nsa
