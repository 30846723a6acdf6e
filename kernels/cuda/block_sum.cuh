// A sum over a thread block whose order is fixed: halves are added to each other.
#pragma once

namespace nsa::cuda {

// The sum of `value` over the kThreads threads of the block, a power of two, on every thread.
// `scratch`: shared memory for kThreads numbers, which may be reused after the next barrier.
template <int kThreads>
__device__ __forceinline__ double BlockSum(double value, double* scratch) {
  scratch[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
  }
  __syncthreads();
  return scratch[0];
}

}  // namespace nsa::cuda
