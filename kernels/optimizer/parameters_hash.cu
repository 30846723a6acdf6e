// The hash on CUDA: each thread adds the terms of its values, each block those of its threads, and
// one atomic sum of whole numbers those of the blocks; no order changes it.
#include "kernels/cuda/launch.h"
#include "kernels/optimizer/parameters_hash.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 16384;  // values of a block
constexpr unsigned int kAllLanes = 0xffffffffu;

__global__ void __launch_bounds__(kThreads)
    HashKernel(Begin start, const float* values, int64_t first, int64_t size,
               unsigned long long* hash) {
  start.WaitForPrevious();
  const int64_t begin = blockIdx.x * kChunk, end = begin + kChunk < size ? begin + kChunk : size;
  unsigned long long sum = 0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    sum += HashOfValue(static_cast<uint64_t>(first + i), __float_as_uint(values[i]));
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(kAllLanes, sum, lanes);
  if (threadIdx.x % 32 == 0) atomicAdd(hash, sum);
}

}  // namespace

absl::Status ParametersHash(const Exec& exec, const ParametersHashArgs& args) {
  NSA_RETURN_IF_ERROR(ZeroBytes(exec.stream, args.hash, sizeof(*args.hash)));
  if (args.values.size == 0) return absl::OkStatus();
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  return Launch(exec, "parameters_hash", HashKernel,
                {.grid = GridFor(args.values.size, kChunk), .block = kThreads},
                DataOf<float>(args.values), args.first, args.values.size,
                reinterpret_cast<unsigned long long*>(args.hash));
}

}  // namespace nsa::cuda
