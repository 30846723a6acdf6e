// What the kernels of φ mlp (compress_mlp.cu, compress_mlp_backward.cu) have in common. A row is a
// (batch row, compression block, group) triple, in this order. Keys and values of a layer are
// computed side by side: blockIdx.y says which.
//
// Nothing copies the blocks' tokens into a matrix. A product over u = x + pe reads x where it is,
// and the part with pe, which is the same for all rows, is added as a term of its own.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nsa/compress/compress.h"

namespace nsa::cuda {

struct CompressProblem {
  int batch, seq_len, groups, width, l, d, blocks;
  const int* at = nullptr;  // CompressArgs::at
  int cache = 0;

  // Elements from the beginnings of x and y to those of the first block.
  __device__ __forceinline__ int64_t InX() const {
    return at == nullptr ? 0 : int64_t{at[0] + 1 - l - at[1 + cache]} * groups * width;
  }
  __device__ __forceinline__ int64_t InY() const {
    return at == nullptr ? 0 : int64_t{(at[0] + 1 - l) / d} * groups * width;
  }
  __host__ __device__ int rows() const { return batch * blocks * groups; }
  __host__ __device__ int in() const { return l * width; }  // columns of W1 for each unit
};

inline CompressProblem ProblemOf(const NsaShape& s, int width) {
  return {s.batch, s.seq_len, s.n_kv_groups, width, s.l, s.d, s.cmp_blocks()};
}
inline CompressProblem ProblemOf(const CompressArgs& args) {
  CompressProblem p = ProblemOf(args.shape, args.width);
  p.at = args.at.wanted() ? DataOf<int>(args.at) : nullptr;
  p.cache = args.cache;
  return p;
}

// Elements from a token of dx to the next.
inline int64_t InputStride(const CompressBackwardArgs& args) {
  if (args.dx_stride != 0) return args.dx_stride;
  return int64_t{args.shape.n_kv_groups} * args.width;
}

constexpr int kMostCompressed = 2;  // tensors of one call

absl::Status CompressMlp(const Exec& exec, std::span<const CompressArgs> tensors);
absl::Status CompressMlpBackward(const Exec& exec, std::span<const CompressBackwardArgs> tensors);

// A row that advances by kStep rows at a time, without a division for each.
template <int kStep>
class RowCursor {
 public:
  __device__ __forceinline__ RowCursor(const CompressProblem& p, int row)
      : b_(row / p.groups / p.blocks),
        i_(row / p.groups % p.blocks),
        g_(row % p.groups),
        whole_(kStep / p.groups),
        rest_(kStep % p.groups) {}

  __device__ __forceinline__ void Advance(const CompressProblem& p) {
    i_ += whole_, g_ += rest_;
    if (g_ >= p.groups) g_ -= p.groups, ++i_;
    while (i_ >= p.blocks) i_ -= p.blocks, ++b_;
  }
  // Where token r of the row's block begins, in elements of x.
  __device__ __forceinline__ int64_t TokenAt(const CompressProblem& p, int r) const {
    return ((int64_t{b_} * p.seq_len + i_ * p.d + r) * p.groups + g_) * p.width;
  }

 private:
  int b_, i_, g_;
  const int whole_, rest_;  // kStep rows are so many blocks and so many groups
};

__device__ __forceinline__ float2 LoadPair(const bf16* at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}
__device__ __forceinline__ void StorePair(bf16* at, float left, float right) {
  *reinterpret_cast<uint32_t*>(at) = Pack(left, right);
}

// Copies `rows` rows of kWidth contiguous columns, `step` elements apart, into a tile.
template <int kWidth>
__device__ __forceinline__ void CopyRows(bf16* tile, const bf16* from, int64_t step, int rows) {
  for (int piece = threadIdx.x; piece < rows * (kWidth / 8); piece += blockDim.x) {
    const int row = piece / (kWidth / 8), chunk = piece % (kWidth / 8);
    CopyAsync16(Tile<kWidth>::At(tile, row, chunk), from + row * step + chunk * 8, true);
  }
}

// Calls `run` with std::integral_constant<int, width>.
template <class Run>
absl::Status ForWidth(int width, Run run) {
  switch (width) {
    case 16:
      return run(std::integral_constant<int, 16>{});
    case 32:
      return run(std::integral_constant<int, 32>{});
    case 64:
      return run(std::integral_constant<int, 64>{});
    case 128:
      return run(std::integral_constant<int, 128>{});
    case 192:
      return run(std::integral_constant<int, 192>{});
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("width: ", width, " (must be 16, 32, 64, 128 or 192); change d_k or d_v"));
  }
}

}  // namespace nsa::cuda
