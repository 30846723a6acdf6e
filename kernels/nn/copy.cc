#include "kernels/nn/copy.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

// Bytes per task: large enough to be worth a thread, small enough to divide among threads.
constexpr int64_t kChunk = 1 << 16;

template <class From, class To>
void ConvertOnCpu(std::span<const From> from, std::span<To> to) {
  const auto size = static_cast<int64_t>(from.size());
#pragma omp parallel for schedule(static) if (size > kChunk)
  for (int64_t i = 0; i < size; ++i) to[i] = static_cast<To>(from[i]);
}

}  // namespace

absl::Status Copy(const Exec& exec, const ConstTensor& from, const Tensor& to) {
  NSA_RETURN_IF_ERROR(CheckTensor("to", to, from.size, from.dtype, "from"));
  exec.Enter("copy");
  if (exec.backend == Backend::kCuda) return cuda::Copy(exec, from, to);
  const int64_t bytes = from.size * SizeOf(from.dtype);
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
#pragma omp parallel for schedule(static) if (bytes > 4 * kChunk)
  for (int64_t begin = 0; begin < bytes; begin += kChunk) {
    std::memcpy(target + begin, source + begin, std::min(kChunk, bytes - begin));
  }
  return absl::OkStatus();
}

absl::Status Zero(const Exec& exec, const Tensor& to) {
  exec.Enter("zero");
  if (exec.backend == Backend::kCuda) return cuda::Zero(exec, to);
  const int64_t bytes = to.size * SizeOf(to.dtype);
  auto* target = static_cast<std::byte*>(to.data);
#pragma omp parallel for schedule(static) if (bytes > 4 * kChunk)
  for (int64_t begin = 0; begin < bytes; begin += kChunk) {
    std::memset(target + begin, 0, std::min(kChunk, bytes - begin));
  }
  return absl::OkStatus();
}

absl::Status ZeroRanges(const Exec& exec, const Tensor& to, std::span<const ElementRange> ranges) {
  NSA_RETURN_IF_ERROR(CheckTensor("to", to, to.size, DType::kF32, "N"));
  for (const ElementRange& range : ranges) {
    if (range.begin < 0 || range.size < 0 || range.begin > to.size - range.size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("zero: elements %d to %d (of %d); name elements of the tensor",
                          range.begin, range.begin + range.size, to.size));
    }
  }
  exec.Enter("zero");
  if (exec.backend == Backend::kCuda) return cuda::ZeroRanges(exec, to, ranges);
  for (const ElementRange& range : ranges) {
    std::fill_n(to.as<float>().begin() + range.begin, range.size, 0.0f);
  }
  return absl::OkStatus();
}

absl::Status AddTo(const Exec& exec, const ConstTensor& from, const Tensor& to) {
  NSA_RETURN_IF_ERROR(CheckTensor("to", to, from.size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("from", from, from.size, DType::kF32, "N"));
  exec.Enter("add");
  if (exec.backend == Backend::kCuda) return cuda::AddTo(exec, from, to);
  const std::span<const float> source = from.as<float>();
  const std::span<float> target = to.as<float>();
#pragma omp parallel for schedule(static) if (from.size > kChunk)
  for (int64_t i = 0; i < from.size; ++i) target[i] += source[i];
  return absl::OkStatus();
}

absl::Status Convert(const Exec& exec, const ConstTensor& from, const Tensor& to) {
  const bool rounds = to.dtype == DType::kBf16;
  NSA_RETURN_IF_ERROR(CheckTensor("to", to, from.size, rounds ? DType::kBf16 : DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(
      CheckTensor("from", from, from.size, rounds ? DType::kF32 : DType::kBf16, "N"));
  exec.Enter("convert");
  if (exec.backend == Backend::kCuda) return cuda::Convert(exec, from, to);
  rounds ? ConvertOnCpu(from.as<float>(), to.as<bf16>())
         : ConvertOnCpu(from.as<bf16>(), to.as<float>());
  return absl::OkStatus();
}

}  // namespace nsa
