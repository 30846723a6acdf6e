// Matrix products on CUDA, computed by cuBLASLt (kernels/cuda/blas.h).
#include "absl/status/status.h"
#include "kernels/cuda/blas.h"
#include "kernels/nn/matmul.h"

namespace nsa::cuda {

absl::Status Matmul(const Exec& exec, const MatmulArgs& args) {
  if (exec.blas == nullptr) {
    return absl::FailedPreconditionError(
        "matmul: no cuBLASLt in the Exec (one a device); open it with Blas::Create()");
  }
  return exec.blas->Matmul(exec.stream, args);
}

}  // namespace nsa::cuda
