#include "worker/bench/data.h"

#include <cstdlib>
#include <cstring>

#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"

namespace nsa::bench {
namespace {

// SplitMix64 of an index, so that each value can be computed independently.
uint64_t Mix(uint64_t seed, int64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(index) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

float Uniform(uint64_t seed, int64_t index, float scale) {
  return scale * (static_cast<float>(Mix(seed, index) >> 40) * 0x1p-23f - 1.0f);
}

}  // namespace

Data::~Data() {
  for (void* block : blocks_) {
    if (on_device()) {
      cudaFree(block);
    } else {
      std::free(block);
    }
  }
}

Tensor Data::Allocate(int64_t size, DType dtype, int fill) {
  const int64_t bytes = size * SizeOf(dtype);
  void* block = nullptr;
  if (bytes > 0 && on_device()) {
    if (status_.ok()) status_ = cuda::ToStatus(cudaMalloc(&block, bytes), "cudaMalloc");
    if (status_.ok()) status_ = cuda::ToStatus(cudaMemset(block, fill, bytes), "cudaMemset");
    if (status_.ok()) status_ = cuda::Synchronize(nullptr);
  } else if (bytes > 0) {
    block = std::malloc(bytes);
    std::memset(block, fill, bytes);
  }
  if (block != nullptr) blocks_.push_back(block);
  return {block, size, dtype};
}

void Data::Upload(const Tensor& tensor, const void* values) {
  if (!status_.ok() || tensor.size == 0) return;
  const int64_t bytes = tensor.size * SizeOf(tensor.dtype);
  if (on_device()) {
    status_ =
        cuda::ToStatus(cudaMemcpy(tensor.data, values, bytes, cudaMemcpyHostToDevice), "upload");
    if (status_.ok()) status_ = cuda::Synchronize(nullptr);
  } else {
    std::memcpy(tensor.data, values, bytes);
  }
}

Tensor Data::Random(int64_t size, uint64_t seed, float scale) {
  if (!on_device()) {
    const Tensor tensor = Allocate(size, DType::kF32, 0);
    auto* values = static_cast<float*>(tensor.data);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < size; ++i) {
      values[i] = static_cast<float>(bf16(Uniform(seed, i, scale)));
    }
    return tensor;
  }
  std::vector<bf16> values(size);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < size; ++i) values[i] = bf16(Uniform(seed, i, scale));
  const Tensor tensor = Allocate(size, DType::kBf16, 0);
  Upload(tensor, values.data());
  return tensor;
}

Tensor Data::RandomF32(int64_t size, uint64_t seed, float scale) {
  std::vector<float> values(size);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < size; ++i) values[i] = Uniform(seed, i, scale);
  const Tensor tensor = Allocate(size, DType::kF32, 0);
  Upload(tensor, values.data());
  return tensor;
}

Tensor Data::RandomInts(int64_t size, uint64_t seed, int32_t limit) {
  std::vector<int32_t> values(size);
  for (int64_t i = 0; i < size; ++i) {
    values[i] = static_cast<int32_t>(Mix(seed, i) % static_cast<uint64_t>(limit));
  }
  const Tensor tensor = Allocate(size, DType::kI32, 0);
  Upload(tensor, values.data());
  return tensor;
}

Tensor Data::Out(int64_t size) {
  return Allocate(size, on_device() ? DType::kBf16 : DType::kF32, 0xff);
}
Tensor Data::Raw(int64_t size, DType dtype) { return Allocate(size, dtype, 0xff); }
Tensor Data::Zeros(int64_t size, DType dtype) { return Allocate(size, dtype, 0); }

std::vector<float> Data::Read(const ConstTensor& tensor) const {
  std::vector<float> values(tensor.size);
  if (!on_device()) {
    std::memcpy(values.data(), tensor.data, tensor.size * sizeof(float));
    return values;
  }
  cudaDeviceSynchronize();
  if (tensor.dtype == DType::kF32) {
    cudaMemcpy(values.data(), tensor.data, tensor.size * sizeof(float), cudaMemcpyDeviceToHost);
    return values;
  }
  std::vector<bf16> half(tensor.size);
  cudaMemcpy(half.data(), tensor.data, tensor.size * sizeof(bf16), cudaMemcpyDeviceToHost);
  for (size_t i = 0; i < half.size(); ++i) values[i] = static_cast<float>(half[i]);
  return values;
}

}  // namespace nsa::bench
