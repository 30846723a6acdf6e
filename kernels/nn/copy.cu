// Copies and clears tensors on CUDA.
#include "kernels/cuda/launch.h"
#include "kernels/nn/copy.h"

namespace nsa::cuda {

absl::Status Copy(const Exec& exec, const ConstTensor& from, const Tensor& to) {
  return ToStatus(cudaMemcpyAsync(to.data, from.data, from.size * SizeOf(from.dtype),
                                  cudaMemcpyDeviceToDevice, StreamOf(exec)),
                  "copy");
}

absl::Status Zero(const Exec& exec, const Tensor& to) {
  return ToStatus(cudaMemsetAsync(to.data, 0, to.size * SizeOf(to.dtype), StreamOf(exec)), "zero");
}

}  // namespace nsa::cuda
