// What every kernel's Check() is made of: a tensor against its size and type, once, at the border,
// so that a wrong buffer is a Status and never an illegal access.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// InvalidArgument "q: 120 elements (128 = B·S·H·dk …)" unless `tensor` has memory, `size` elements
// and type `dtype`. `form` is the size in letters. A tensor of size 0 needs no memory.
absl::Status CheckTensor(std::string_view name, const ConstTensor& tensor, int64_t size,
                         DType dtype, std::string_view form);

// As CheckTensor, but a tensor without memory passes: the argument is optional.
absl::Status CheckOptional(std::string_view name, const ConstTensor& tensor, int64_t size,
                           DType dtype, std::string_view form);

// The tensor whose type the others must share: fp32 or bf16.
absl::Status CheckFloating(std::string_view name, const ConstTensor& tensor);

// InvalidArgument "rows: 0 (1 or more); correct the shape" unless `value` ≥ `least`.
absl::Status CheckAtLeast(std::string_view name, int64_t value, int64_t least);

// The optional `doc_start`, int32 [B, S]. On the CPU its values are checked as well:
// 0 ≤ doc_start[b,t] ≤ t. On CUDA they are the caller's promise.
absl::Status CheckDocStart(const Exec& exec, const NsaShape& shape, const ConstTensor& doc_start);

// What activations and weights are made of on a backend.
inline DType ActivationType(const Exec& exec) {
  return exec.backend == Backend::kCuda ? DType::kBf16 : DType::kF32;
}

// Refuses what a backend does not know: other types than fp32 on the CPU and than bf16 on CUDA.
// `dtype` is the type of the activations.
absl::Status CheckBackend(const Exec& exec, std::string_view kernel, DType dtype);

}  // namespace nsa
