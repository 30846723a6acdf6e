// The L2 norm on CUDA: fp64 sums of squares over chunks of 4,096 elements, added by a fixed tree.
// Limited by memory bandwidth: 4 bytes per element.
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/util.cuh"
#include "kernels/optimizer/global_norm.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 4096;

__global__ void __launch_bounds__(kThreads)
    SquaresKernel(Begin start, const float* values, int64_t size, double* sums) {
  __shared__ double scratch[kThreads];
  start.WaitForPrevious();
  const int64_t begin = blockIdx.x * kChunk, end = begin + kChunk < size ? begin + kChunk : size;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  sum = BlockSum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Σ sums, in *sum and, as a root, in *norm; either may be null.
__global__ void __launch_bounds__(kThreads)
    TotalKernel(Begin begin, const double* sums, int64_t count, double* total, float* norm) {
  __shared__ double scratch[kThreads];
  begin.WaitForPrevious();
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = BlockSum<kThreads>(sum, scratch);
  if (threadIdx.x != 0) return;
  if (total != nullptr) *total = sum;
  if (norm != nullptr) *norm = static_cast<float>(sqrt(sum));
}

__global__ void NormOfSumsKernel(Begin begin, NormOfSumsArgs args, float* norm) {
  begin.WaitForPrevious();
  double sum = 0;
  for (int i = 0; i < args.count; ++i) sum += args.sums[i];
  *norm = static_cast<float>(sqrt(sum));
}

absl::Status Total(const Exec& exec, const ConstTensor& values, double* total, float* norm) {
  const int64_t chunks = CeilDiv64(values.size, kChunk);
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, GlobalNormWorkspaceBytes(values.size), "global_norm"));
  auto* sums = static_cast<double*>(workspace);
  if (chunks > 0) {
    NSA_RETURN_IF_ERROR(Launch(exec, "global_norm", SquaresKernel,
                               {.grid = static_cast<unsigned int>(chunks), .block = kThreads},
                               DataOf<float>(values), values.size, sums));
  }
  return Launch(exec, "global_norm", TotalKernel, {.grid = 1, .block = kThreads}, sums, chunks,
                total, norm);
}

}  // namespace

int64_t GlobalNormWorkspaceBytes(int64_t size) { return 8 * CeilDiv64(size, kChunk); }

absl::Status GlobalNorm(const Exec& exec, const GlobalNormArgs& args) {
  return Total(exec, args.values, nullptr, DataOf<float>(args.norm));
}

absl::Status SquareSum(const Exec& exec, const SquareSumArgs& args) {
  return Total(exec, args.values, args.sum, nullptr);
}

absl::Status NormOfSums(const Exec& exec, const NormOfSumsArgs& args) {
  return Launch(exec, "global_norm", NormOfSumsKernel, {}, args, DataOf<float>(args.norm));
}

}  // namespace nsa::cuda
