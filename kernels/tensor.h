// Tensors as kernels take them: borrowed, contiguous, typed memory. A tensor has no ownership, no
// strides and no shape (the comment of each argument states its shape, and the element count is
// checked against it). The memory is on the device of the Exec that the tensor is used with.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/dtype.h"

namespace nsa {

// Writable. A Tensor of size 0 with a null pointer means "not wanted" where an argument says that
// it is optional.
struct Tensor {
  void* data = nullptr;
  int64_t size = 0;  // elements
  DType dtype = DType::kF32;

  Tensor() = default;
  Tensor(void* pointer, int64_t count, DType type) : data(pointer), size(count), dtype(type) {}
  template <class T>
  requires(!std::is_const_v<T>) Tensor(std::span<T> values)  // NOLINT: a span is a tensor
      : data(values.data()), size(static_cast<int64_t>(values.size())), dtype(DTypeOf<T>()) {}

  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(data), static_cast<size_t>(size)};
  }
  bool wanted() const { return data != nullptr; }
};

// Read-only.
struct ConstTensor {
  const void* data = nullptr;
  int64_t size = 0;
  DType dtype = DType::kF32;

  ConstTensor() = default;
  ConstTensor(const void* pointer, int64_t count, DType type)
      : data(pointer), size(count), dtype(type) {}
  ConstTensor(const Tensor& tensor)  // NOLINT: reading what may be written
      : data(tensor.data), size(tensor.size), dtype(tensor.dtype) {}
  template <class T>
  ConstTensor(std::span<T> values)  // NOLINT: a span is a tensor
      : data(values.data()),
        size(static_cast<int64_t>(values.size())),
        dtype(DTypeOf<std::remove_const_t<T>>()) {}

  template <class T>
  std::span<const T> as() const {
    return {static_cast<const T*>(data), static_cast<size_t>(size)};
  }
  bool wanted() const { return data != nullptr; }
};

}  // namespace nsa
