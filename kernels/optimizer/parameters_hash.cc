#include "kernels/optimizer/parameters_hash.h"

#include <bit>

#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {

absl::Status ParametersHash(const Exec& exec, const ParametersHashArgs& args) {
  NSA_RETURN_IF_ERROR(CheckTensor("values", args.values, args.values.size, DType::kF32, "N"));
  if (args.hash == nullptr) {
    return absl::InvalidArgumentError("parameters_hash: hash: null; give it room for one number");
  }
  exec.Enter("parameters_hash");
  if (exec.backend == Backend::kCuda) return cuda::ParametersHash(exec, args);
  const float* const values = args.values.as<float>().data();
  // Few values take less time than threads need to begin. Not used without OpenMP.
  [[maybe_unused]] constexpr int64_t kFewValues = 16384;
  uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum) if (args.values.size > kFewValues)
  for (int64_t i = 0; i < args.values.size; ++i) {
    sum += HashOfValue(static_cast<uint64_t>(args.first + i), std::bit_cast<uint32_t>(values[i]));
  }
  *args.hash = sum;
  return absl::OkStatus();
}

}  // namespace nsa
