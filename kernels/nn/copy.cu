// Copies, adds, converts and clears tensors on CUDA.
#include "absl/strings/str_format.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/util.cuh"
#include "kernels/nn/copy.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOwn = 4;  // elements of a thread; read and written together where both are aligned

__global__ void __launch_bounds__(kThreads)
    RoundKernel(Begin start, const float* from, int64_t size, bool aligned, bf16* to) {
  start.WaitForPrevious();
  const int64_t first = kOwn * (int64_t{1} * blockIdx.x * kThreads + threadIdx.x);
  if (first >= size) return;
  if (aligned && first + kOwn <= size) {
    const float4 x = *reinterpret_cast<const float4*>(from + first);
    *reinterpret_cast<uint2*>(to + first) = {Pack(x.x, x.y), Pack(x.z, x.w)};
    return;
  }
  for (int64_t i = first; i < min(first + kOwn, size); ++i) to[i] = __float2bfloat16(from[i]);
}

__global__ void __launch_bounds__(kThreads)
    WidenKernel(Begin start, const bf16* from, int64_t size, bool aligned, float* to) {
  start.WaitForPrevious();
  const int64_t first = kOwn * (int64_t{1} * blockIdx.x * kThreads + threadIdx.x);
  if (first >= size) return;
  if (aligned && first + kOwn <= size) {
    const uint2 x = *reinterpret_cast<const uint2*>(from + first);  // the lower half comes first
    *reinterpret_cast<float4*>(to + first) = {
        __uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
        __uint_as_float(x.y & 0xffff0000u)};
    return;
  }
  for (int64_t i = first; i < min(first + kOwn, size); ++i) to[i] = __bfloat162float(from[i]);
}

__global__ void __launch_bounds__(kThreads)
    AddKernel(Begin start, const float* from, int64_t size, bool aligned, float* to) {
  start.WaitForPrevious();
  const int64_t first = kOwn * (int64_t{1} * blockIdx.x * kThreads + threadIdx.x);
  if (first >= size) return;
  if (aligned && first + kOwn <= size) {
    const float4 x = *reinterpret_cast<const float4*>(from + first);
    float4* const sum = reinterpret_cast<float4*>(to + first);
    *sum = {sum->x + x.x, sum->y + x.y, sum->z + x.z, sum->w + x.w};
    return;
  }
  for (int64_t i = first; i < min(first + kOwn, size); ++i) to[i] += from[i];
}

// Ranges for one launch, in units of four floats; range i has the chunks of kThreads units from
// chunk[i] on.
constexpr int kMostRanges = 128;
struct Ranges {
  int count = 0;
  unsigned int begin[kMostRanges], units[kMostRanges], chunk[kMostRanges];
};

__global__ void __launch_bounds__(kThreads)
    ZeroRangesKernel(Begin start, float4* to, const __grid_constant__ Ranges ranges) {
  start.WaitForPrevious();
  int i = ranges.count - 1;
  while (ranges.chunk[i] > blockIdx.x) --i;
  const unsigned int unit = (blockIdx.x - ranges.chunk[i]) * kThreads + threadIdx.x;
  if (unit < ranges.units[i]) to[ranges.begin[i] + unit] = float4{0, 0, 0, 0};
}

absl::Status CheckMultiplesOf4(const ElementRange& range) {
  if (range.begin % 4 == 0 && range.size % 4 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("zero: %d elements from %d (multiples of 4 on a GPU); align the range",
                      range.size, range.begin));
}

}  // namespace

absl::Status ZeroRanges(const Exec& exec, const Tensor& to, std::span<const ElementRange> ranges) {
  for (const ElementRange& range : ranges) NSA_RETURN_IF_ERROR(CheckMultiplesOf4(range));
  while (!ranges.empty()) {
    Ranges some;
    unsigned int chunks = 0;
    for (; some.count < kMostRanges && !ranges.empty(); ranges = ranges.subspan(1)) {
      if (ranges[0].size == 0) continue;
      some.begin[some.count] = static_cast<unsigned int>(ranges[0].begin / 4);
      some.units[some.count] = static_cast<unsigned int>(ranges[0].size / 4);
      some.chunk[some.count] = chunks;
      chunks += CeilDiv64(some.units[some.count], kThreads);
      ++some.count;
    }
    if (some.count == 0) break;
    NSA_RETURN_IF_ERROR(Launch(exec, "zero", ZeroRangesKernel, {.grid = chunks, .block = kThreads},
                               reinterpret_cast<float4*>(to.data), some));
  }
  return absl::OkStatus();
}

absl::Status Copy(const Exec& exec, const ConstTensor& from, const Tensor& to) {
  return ToStatus(cudaMemcpyAsync(to.data, from.data, from.size * SizeOf(from.dtype),
                                  cudaMemcpyDeviceToDevice, StreamOf(exec)),
                  "copy");
}

absl::Status Zero(const Exec& exec, const Tensor& to) {
  return ToStatus(cudaMemsetAsync(to.data, 0, to.size * SizeOf(to.dtype), StreamOf(exec)), "zero");
}

absl::Status AddTo(const Exec& exec, const ConstTensor& from, const Tensor& to) {
  if (from.size == 0) return absl::OkStatus();
  const bool aligned = reinterpret_cast<uintptr_t>(from.data) % sizeof(float4) == 0 &&
                       reinterpret_cast<uintptr_t>(to.data) % sizeof(float4) == 0;
  const LaunchShape shape = {.grid = GridFor(from.size, kOwn * kThreads), .block = kThreads};
  return Launch(exec, "add", AddKernel, shape, DataOf<float>(from), from.size, aligned,
                DataOf<float>(to));
}

absl::Status Convert(const Exec& exec, const ConstTensor& from, const Tensor& to) {
  if (from.size == 0) return absl::OkStatus();
  const bool rounds = to.dtype == DType::kBf16;
  const auto wide = reinterpret_cast<uintptr_t>(rounds ? from.data : to.data);
  const auto narrow = reinterpret_cast<uintptr_t>(rounds ? to.data : from.data);
  const bool aligned = wide % sizeof(float4) == 0 && narrow % sizeof(uint2) == 0;
  const LaunchShape shape = {.grid = GridFor(from.size, kOwn * kThreads), .block = kThreads};
  if (rounds) {
    return Launch(exec, "convert", RoundKernel, shape, DataOf<float>(from), from.size, aligned,
                  DataOf<bf16>(to));
  }
  return Launch(exec, "convert", WidenKernel, shape, DataOf<bf16>(from), from.size, aligned,
                DataOf<float>(to));
}

}  // namespace nsa::cuda
