// Inputs and outputs of a benchmarked kernel: the same values in fp32 on the host and in bf16 on
// the device, so that one description of a call serves the CPU reference and the GPU.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa::bench {

// Memory of one call, on the device of its Exec. Tensors live as long as the Data. Device memory
// comes from cudaMalloc; status() returns the first failure.
class Data {
 public:
  explicit Data(const Exec& exec) : exec_(exec), exec_with_side_(exec) { exec_.side = nullptr; }
  ~Data();
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;

  // Without a side stream: everything runs in order. For timing one kernel.
  const Exec& exec() const { return exec_; }
  // With the Exec's side stream, if it has one. For timing a whole layer.
  const Exec& exec_with_side() const { return exec_with_side_; }
  const absl::Status& status() const { return status_; }

  // Uniform in (−scale, scale), rounded to bf16. A function of (seed, index) alone, so both devices
  // get the same values. RandomF32 does not round and is fp32 on both.
  Tensor Random(int64_t size, uint64_t seed, float scale = 1);
  Tensor RandomF32(int64_t size, uint64_t seed, float scale = 1);
  // Integers in [0, limit).
  Tensor RandomInts(int64_t size, uint64_t seed, int32_t limit);
  // Activations (bf16 or, on the host, fp32), filled with NaN.
  Tensor Out(int64_t size);
  // Any type, filled with 0xff bytes or zeros.
  Tensor Raw(int64_t size, DType dtype);
  Tensor Zeros(int64_t size, DType dtype);

  // The values of a floating tensor as fp32, on the host.
  std::vector<float> Read(const ConstTensor& tensor) const;

 private:
  Tensor Allocate(int64_t size, DType dtype, int fill);
  void Upload(const Tensor& tensor, const void* values);
  bool on_device() const { return exec_.backend == Backend::kCuda; }

  Exec exec_, exec_with_side_;
  absl::Status status_;
  std::vector<void*> blocks_;
};

}  // namespace nsa::bench
