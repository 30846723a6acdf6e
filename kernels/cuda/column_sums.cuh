// The second half of a sum over the rows of a matrix. The first half sums kBlocks ranges of rows, a
// constant number, so that the order of the sums does not depend on the GPU.
#pragma once

#include "kernels/cuda/begin.cuh"
#include "kernels/cuda/util.cuh"

namespace nsa::cuda {

// Thread block of AddColumnSums(): kWarp columns, an eighth of the ranges each.
constexpr int kColumnSumParts = 8;

// to[c] += Σ partial[·, c]: eight threads per column each add an eighth of the ranges in order.
// partial: fp32 [kBlocks, width].
template <int kBlocks>
__global__ void AddColumnSums(Begin begin, const float* partial, int width, float* to) {
  static_assert(kBlocks % kColumnSumParts == 0);
  constexpr int kPart = kBlocks / kColumnSumParts;
  __shared__ float sums[kColumnSumParts][kWarp];
  begin.WaitForPrevious();
  const int c = blockIdx.x * kWarp + threadIdx.x;
  float sum = 0;
  if (c < width) {
#pragma unroll 16  // so many loads under way
    for (int block = kPart * threadIdx.y; block < kPart * (threadIdx.y + 1); ++block) {
      sum += partial[int64_t{1} * block * width + c];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= width) return;
  for (int part = 1; part < kColumnSumParts; ++part) sum += sums[part][threadIdx.x];
  to[c] += sum;
}

}  // namespace nsa::cuda
