#include "kernels/optimizer/global_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {

absl::Status GlobalNorm(const Exec& exec, const GlobalNormArgs& args) {
  NSA_RETURN_IF_ERROR(CheckTensor("values", args.values, args.values.size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("norm", args.norm, 1, DType::kF32, "1"));
  exec.Enter("global_norm");
  if (exec.backend == Backend::kCuda) return cuda::GlobalNorm(exec, args);
  constexpr int64_t kChunk = 4096;
  const int64_t chunks = (args.values.size + kChunk - 1) / kChunk;
  std::vector<double> partial(chunks);
  const float* values = args.values.as<float>().data();
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t end = std::min((c + 1) * kChunk, args.values.size);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = c * kChunk; i < end; ++i) sum += static_cast<double>(values[i]) * values[i];
    partial[c] = sum;
  }
  double sum = 0;
  for (const double part : partial) sum += part;
  args.norm.as<float>()[0] = static_cast<float>(std::sqrt(sum));
  return absl::OkStatus();
}

}  // namespace nsa
