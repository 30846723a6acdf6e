#include "kernels/optimizer/global_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

absl::Status Null(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": null; give it memory"));
}

double SquareSumOnCpu(std::span<const float> values) {
  constexpr int64_t kChunk = 4096;
  const auto size = static_cast<int64_t>(values.size());
  const int64_t chunks = (size + kChunk - 1) / kChunk;
  std::vector<double> partial(chunks);
  const float* const data = values.data();
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t end = std::min((c + 1) * kChunk, size);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = c * kChunk; i < end; ++i) sum += static_cast<double>(data[i]) * data[i];
    partial[c] = sum;
  }
  double sum = 0;
  for (const double part : partial) sum += part;
  return sum;
}

}  // namespace

absl::Status GlobalNorm(const Exec& exec, const GlobalNormArgs& args) {
  NSA_RETURN_IF_ERROR(CheckTensor("values", args.values, args.values.size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("norm", args.norm, 1, DType::kF32, "1"));
  exec.Enter("global_norm");
  if (exec.backend == Backend::kCuda) return cuda::GlobalNorm(exec, args);
  const double sum = SquareSumOnCpu(args.values.as<float>());
  args.norm.as<float>()[0] = static_cast<float>(std::sqrt(sum));
  return absl::OkStatus();
}

absl::Status SquareSum(const Exec& exec, const SquareSumArgs& args) {
  NSA_RETURN_IF_ERROR(CheckTensor("values", args.values, args.values.size, DType::kF32, "N"));
  if (args.sum == nullptr) return Null("square_sum: sum");
  exec.Enter("global_norm");
  if (exec.backend == Backend::kCuda) return cuda::SquareSum(exec, args);
  *args.sum = SquareSumOnCpu(args.values.as<float>());
  return absl::OkStatus();
}

absl::Status NormOfSums(const Exec& exec, const NormOfSumsArgs& args) {
  NSA_RETURN_IF_ERROR(CheckTensor("norm", args.norm, 1, DType::kF32, "1"));
  NSA_RETURN_IF_ERROR(CheckAtLeast("count", args.count, 1));
  if (args.sums == nullptr) return Null("norm_of_sums: sums");
  exec.Enter("global_norm");
  if (exec.backend == Backend::kCuda) return cuda::NormOfSums(exec, args);
  double sum = 0;
  for (int32_t i = 0; i < args.count; ++i) sum += args.sums[i];
  args.norm.as<float>()[0] = static_cast<float>(std::sqrt(sum));
  return absl::OkStatus();
}

}  // namespace nsa
