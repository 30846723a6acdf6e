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
  NSA_RETURN_IF_ERROR(CheckAtLeast("batch", args.batch, 1));
  constexpr int64_t kMost = std::numeric_limits<blasint>::max();
  if (args.m > kMost || args.n > kMost || args.k > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("matmul: m, n, k: ", args.m, ", ", args.n, ", ",
                                                   args.k, " (at most ", kMost,
                                                   "); use smaller batches"));
  }
  const bool many = args.batch > 1;
  NSA_RETURN_IF_ERROR(
      CheckTensor("a", args.a, args.batch * args.m * args.k, type, many ? "batch·m·k" : "m·k"));
  NSA_RETURN_IF_ERROR(
      CheckTensor("b", args.b, args.batch * args.k * args.n, type, many ? "batch·k·n" : "k·n"));
  if (args.add.wanted() && args.accumulate) {
    return absl::InvalidArgumentError("matmul: add and accumulate (one of them); leave one out");
  }
  const int64_t size = args.batch * args.m * args.n;
  const char* const of_c = many ? "batch·m·n" : "m·n";
  NSA_RETURN_IF_ERROR(CheckOptional("add", args.add, size, result, of_c));
  return CheckTensor("c", args.c, size, result, of_c);
}

// Product number `i` of the batch.
void ProductOnCpu(const MatmulArgs& args, int64_t i) {
  const bool adds = args.accumulate || args.add.wanted();
  cblas_sgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
              args.transpose_b ? CblasTrans : CblasNoTrans, static_cast<blasint>(args.m),
              static_cast<blasint>(args.n), static_cast<blasint>(args.k), args.alpha,
              static_cast<const float*>(args.a.data) + i * args.m * args.k,
              static_cast<blasint>(args.transpose_a ? args.m : args.k),
              static_cast<const float*>(args.b.data) + i * args.k * args.n,
              static_cast<blasint>(args.transpose_b ? args.k : args.n), adds ? args.beta : 0.0f,
              static_cast<float*>(args.c.data) + i * args.m * args.n, static_cast<blasint>(args.n));
}

}  // namespace

absl::Status Matmul(const Exec& exec, const MatmulArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("matmul");
  if (args.m == 0) return absl::OkStatus();
  if (exec.backend == Backend::kCuda) return cuda::Matmul(exec, args);
  if (args.add.wanted()) NSA_RETURN_IF_ERROR(Copy(exec, args.add, args.c));
  for (int64_t i = 0; i < args.batch; ++i) ProductOnCpu(args, i);
  return absl::OkStatus();
}

}  // namespace nsa
