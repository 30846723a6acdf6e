// Argument checks shared by all kernels. Each kernel checks every tensor's size and type once, on
// entry, so that a wrong buffer is reported as a Status and never causes an illegal access.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "common/nsa/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// InvalidArgument "q: 120 elements (must be 128 = …)" unless `tensor` has memory, `size` elements
// and type `dtype`. `form` is the size as a formula. A tensor of size 0 needs no memory.
absl::Status CheckTensor(std::string_view name, const ConstTensor& tensor, int64_t size,
                         DType dtype, std::string_view form);

// As CheckTensor, for an optional argument: a tensor without memory passes.
absl::Status CheckOptional(std::string_view name, const ConstTensor& tensor, int64_t size,
                           DType dtype, std::string_view form);

// InvalidArgument unless `tensor`, whose type the other tensors must share, is fp32 or bf16.
absl::Status CheckFloating(std::string_view name, const ConstTensor& tensor);

// InvalidArgument "rows: 0 (at least 1); correct the shape" unless `value` ≥ `least`.
absl::Status CheckAtLeast(std::string_view name, int64_t value, int64_t least);

// Checks the optional `doc_start`, int32 [B, S]. On the CPU its values are checked as well:
// 0 ≤ doc_start[b,t] ≤ t. On CUDA the caller must guarantee this.
absl::Status CheckDocStart(const Exec& exec, const NsaShape& shape, const ConstTensor& doc_start);

// The element type of activations and weights on a backend.
inline DType ActivationType(const Exec& exec) {
  return exec.backend == Backend::kCuda ? DType::kBf16 : DType::kF32;
}

// Refuses `dtype`, the type of the activations, unless the backend supports it: fp32 on the CPU,
// bf16 on CUDA.
absl::Status CheckBackend(const Exec& exec, std::string_view kernel, DType dtype);

}  // namespace nsa
