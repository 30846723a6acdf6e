// Biases on CUDA, 16 bytes per thread and access; limited by memory bandwidth. The gradient is
// summed over a constant number of row ranges, whose sums are added in order.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/bias.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 8 * kThreads;  // of a thread block

__device__ __forceinline__ void Add(Float8* sum, const Float8& x) {
#pragma unroll
  for (int e = 0; e < 8; ++e) sum->v[e] += x.v[e];
}

// chunks: of eight columns, of a row; count: of all rows.
__global__ void __launch_bounds__(kThreads)
    AddBiasKernel(Begin begin, const bf16* bias, bf16* y, int64_t chunks, int64_t count) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  Float8 sum = Load8(y + 8 * i);
  Add(&sum, Load8(bias + 8 * (i % chunks)));
  Store8(y + 8 * i, sum);
}

constexpr int kBlocks = 128;  // ranges of rows

// A thread block sums rows [rows·x/kBlocks, …) of kColumns columns, which blockIdx.y selects.
__global__ void __launch_bounds__(kThreads)
    BiasGradientKernel(Begin begin, const bf16* dy, float* partial, int64_t rows, int width) {
  begin.WaitForPrevious();
  const int c = static_cast<int>(blockIdx.y) * kColumns + 8 * static_cast<int>(threadIdx.x);
  if (c >= width) return;
  const int64_t first = rows * blockIdx.x / kBlocks, end = rows * (blockIdx.x + 1) / kBlocks;
  Float8 sum{};
#pragma unroll 4
  for (int64_t row = first; row < end; ++row) Add(&sum, Load8(dy + row * width + c));
  float* const to = partial + int64_t{1} * blockIdx.x * width + c;
#pragma unroll
  for (int e = 0; e < 8; ++e) to[e] = sum.v[e];
}

}  // namespace

int64_t BiasGradientWorkspaceBytes(int64_t width) { return 4 * kBlocks * width; }

absl::Status AddBias(const Exec& exec, const AddBiasArgs& args) {
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("add_bias", "width", args.width));
  if (args.rows == 0) return absl::OkStatus();
  const int64_t chunks = args.width / 8, count = args.rows * chunks;
  return Launch(exec, "add_bias", AddBiasKernel,
                {.grid = GridFor(count, kThreads), .block = kThreads}, DataOf<bf16>(args.bias),
                DataOf<bf16>(args.y), chunks, count);
}

absl::Status BiasGradient(const Exec& exec, const BiasGradientArgs& args) {
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("bias_gradient", "width", args.width));
  const int width = static_cast<int>(args.width);
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, BiasGradientWorkspaceBytes(args.width), "bias_gradient"));
  auto* const partial = static_cast<float*>(workspace);
  NSA_RETURN_IF_ERROR(Launch(exec, "bias_gradient", BiasGradientKernel,
                             {.grid = dim3(kBlocks, GridFor(width, kColumns)), .block = kThreads},
                             DataOf<bf16>(args.dy), partial, args.rows, width));
  return Launch(exec, "bias_gradient", AddColumnSums<kBlocks>,
                {.grid = GridFor(width, kWarp), .block = dim3(kWarp, kColumnSumParts)}, partial,
                width, DataOf<float>(args.dbias));
}

}  // namespace nsa::cuda
