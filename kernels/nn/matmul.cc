#include "kernels/nn/matmul.h"

#include <cblas.h>

#include <limits>

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/nn/copy.h"

namespace nsa {
namespace {

absl::Status Check(const Exec& exec, const MatmulArgs& args) {
  const DType type = ActivationType(exec);
  // On CUDA gradients of weights are fp32, everything else is bf16.
  const DType result = args.c.dtype == DType::kF32 ? DType::kF32 : type;
  NSA_RETURN_IF_ERROR(CheckAtLeast("m", args.m, 0));
  NSA_RETURN_IF_ERROR(CheckAtLeast("n", args.n, 1));
  NSA_RETURN_IF_ERROR(CheckAtLeast("k", args.k, 1));
  constexpr int64_t kMost = std::numeric_limits<blasint>::max();
  if (args.m > kMost || args.n > kMost || args.k > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("matmul: m, n, k: ", args.m, ", ", args.n, ", ",
                                                   args.k, " (at most ", kMost,
                                                   "); use smaller batches"));
  }
  NSA_RETURN_IF_ERROR(CheckTensor("a", args.a, args.m * args.k, type, "m·k"));
  NSA_RETURN_IF_ERROR(CheckTensor("b", args.b, args.k * args.n, type, "k·n"));
  if (args.add.wanted() && args.accumulate) {
    return absl::InvalidArgumentError("matmul: add and accumulate (one of them); leave one out");
  }
  NSA_RETURN_IF_ERROR(CheckOptional("add", args.add, args.m * args.n, result, "m·n"));
  return CheckTensor("c", args.c, args.m * args.n, result, "m·n");
}

}  // namespace

absl::Status Matmul(const Exec& exec, const MatmulArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("matmul");
  if (args.m == 0) return absl::OkStatus();
  if (exec.backend == Backend::kCuda) return cuda::Matmul(exec, args);
  const bool adds = args.accumulate || args.add.wanted();
  if (args.add.wanted()) {
    NSA_RETURN_IF_ERROR(Copy(exec, args.add, args.c));
  }
  cblas_sgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
              args.transpose_b ? CblasTrans : CblasNoTrans, static_cast<blasint>(args.m),
              static_cast<blasint>(args.n), static_cast<blasint>(args.k), 1.0f,
              static_cast<const float*>(args.a.data),
              static_cast<blasint>(args.transpose_a ? args.m : args.k),
              static_cast<const float*>(args.b.data),
              static_cast<blasint>(args.transpose_b ? args.k : args.n), adds ? 1.0f : 0.0f,
              static_cast<float*>(args.c.data), static_cast<blasint>(args.n));
  return absl::OkStatus();
}

}  // namespace nsa
