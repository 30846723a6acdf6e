// A GPU for tests: memory that is filled with NaN before use, transfers, and an Exec with
// everything that kernels need.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa::testing {

inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  ADD_FAILURE() << what << ": " << cudaGetErrorString(error);
  std::abort();  // the CUDA context is lost: later results would be meaningless
}

// run_gpu.sh --least-shared sets this variable.
inline const bool kLeastSharedMemory = [] {
  const bool least = std::getenv("NSA_TEST_LEAST_SHARED") != nullptr;
  if (least) cuda::ImitateLeastSharedMemory();
  return least;
}();

// Device memory of `size` elements, filled with 0xff bytes (NaN in every floating type).
class DeviceTensor {
 public:
  DeviceTensor(int64_t size, DType type) : tensor_(nullptr, size, type) {
    if (size == 0) return;
    CheckCuda(cudaMalloc(&tensor_.data, bytes()), "cudaMalloc");
    CheckCuda(cudaMemset(tensor_.data, 0xff, bytes()), "cudaMemset");
    CheckCuda(cudaStreamSynchronize(nullptr), "cudaMemset");  // kernels run on another stream
  }
  DeviceTensor(DeviceTensor&& other) noexcept : tensor_(other.tensor_) { other.tensor_ = {}; }
  DeviceTensor& operator=(DeviceTensor&&) = delete;
  ~DeviceTensor() { cudaFree(tensor_.data); }

  int64_t bytes() const { return tensor_.size * SizeOf(tensor_.dtype); }
  operator Tensor() const { return tensor_; }       // NOLINT
  operator ConstTensor() const { return tensor_; }  // NOLINT
  Tensor tensor() const { return tensor_; }

  template <class T>
  void Upload(const std::vector<T>& values) {
    CheckCuda(cudaMemcpy(tensor_.data, values.data(), bytes(), cudaMemcpyHostToDevice), "upload");
    CheckCuda(cudaStreamSynchronize(nullptr), "upload");
  }
  template <class T>
  std::vector<T> Raw() const {
    std::vector<T> values(tensor_.size);
    CheckCuda(cudaDeviceSynchronize(), "synchronize");
    if (tensor_.size > 0)
      CheckCuda(cudaMemcpy(values.data(), tensor_.data, bytes(), cudaMemcpyDeviceToHost),
                "download");
    return values;
  }
  std::vector<uint8_t> Bytes() const {
    std::vector<uint8_t> values(bytes());
    CheckCuda(cudaDeviceSynchronize(), "synchronize");
    if (!values.empty())
      CheckCuda(cudaMemcpy(values.data(), tensor_.data, bytes(), cudaMemcpyDeviceToHost),
                "download");
    return values;
  }
  // bf16 or fp32 as fp32.
  std::vector<float> Floats() const {
    if (tensor_.dtype == DType::kF32) return Raw<float>();
    const std::vector<bf16> raw = Raw<bf16>();
    std::vector<float> values(raw.size());
    for (size_t i = 0; i < raw.size(); ++i) values[i] = static_cast<float>(raw[i]);
    return values;
  }

 private:
  Tensor tensor_;
};

inline std::vector<float> RoundToBf16(std::vector<float> values) {
  for (float& x : values) x = static_cast<float>(bf16(x));
  return values;
}

// Copies `values`, already rounded to bf16, to the device as bf16.
inline DeviceTensor ToDevice(const std::vector<float>& values) {
  std::vector<bf16> raw(values.size());
  for (size_t i = 0; i < values.size(); ++i) raw[i] = bf16(values[i]);
  DeviceTensor tensor(static_cast<int64_t>(values.size()), DType::kBf16);
  if (!raw.empty()) tensor.Upload(raw);
  return tensor;
}
inline DeviceTensor ToDeviceF32(const std::vector<float>& values) {
  DeviceTensor tensor(static_cast<int64_t>(values.size()), DType::kF32);
  if (!values.empty()) tensor.Upload(values);
  return tensor;
}
inline DeviceTensor ToDevice(const std::vector<int32_t>& values) {
  DeviceTensor tensor(static_cast<int64_t>(values.size()), DType::kI32);
  if (!values.empty()) tensor.Upload(values);
  return tensor;
}

inline bool HasGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// One for the whole program.
class Gpu {
 public:
  static Gpu& Get() {
    static Gpu gpu;
    return gpu;
  }
  Exec exec() {
    return {.backend = Backend::kCuda,
            .stream = stream_,
            .blas = blas_.get(),
            .workspace = workspace_.tensor().data,
            .workspace_bytes = workspace_.bytes()};
  }
  cudaStream_t stream() const { return stream_; }

 private:
  Gpu() : workspace_(int64_t{3} << 30, DType::kU8), blas_workspace_(64 << 20, DType::kU8) {
    CheckCuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
    auto blas = cuda::Blas::Create(blas_workspace_.tensor().data, blas_workspace_.bytes());
    EXPECT_TRUE(blas.ok()) << blas.status();
    if (blas.ok()) blas_ = *std::move(blas);
  }
  DeviceTensor workspace_, blas_workspace_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::Blas> blas_;
};

// Base of the tests that need a GPU: they are skipped, with the reason, where there is none.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no CUDA device on this machine";
  }
};
template <class T>
class GpuTestWith : public ::testing::TestWithParam<T> {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no CUDA device on this machine";
    if constexpr (requires(const T& one) { one.shape.d_k; }) {
      const auto& shape = this->GetParam().shape;
      if (kLeastSharedMemory && std::max(shape.d_k, shape.d_v) > 64) {
        GTEST_SKIP() << "heads wider than 64, which preflight refuses";
      }
    }
  }
};

// Checks ‖got − want‖ ≤ relative · ‖want‖ and every |got − want| ≤ relative · 8 · max|want| +
// floor; NaN always fails. bf16 has unit roundoff 2^-9: the error of an output that is rounded once
// and computed from products of rounded weights is a few times that.
inline ::testing::AssertionResult Near(const std::string& name, const std::vector<float>& got,
                                       const std::vector<float>& want, double relative,
                                       double floor = 1e-6) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure()
           << name << ": size " << got.size() << " vs " << want.size();
  double error = 0, norm = 0, most = 0, worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i]) && got[i] == want[i]) continue;
    const double diff = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(diff <= worst)) {
      worst = diff;
      where = i;
      if (std::isnan(diff)) break;
    }
    error += diff * diff;
    norm += static_cast<double>(want[i]) * want[i];
    most = std::max(most, std::abs(static_cast<double>(want[i])));
  }
  if (!std::isnan(worst) &&
      std::sqrt(error) <= relative * std::sqrt(norm) + floor * std::sqrt(got.size() + 1.0) &&
      worst <= 8 * relative * most + floor) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << name << "[" << where << "]: " << got[where] << " vs " << want[where]
         << "; relative L2 error " << std::sqrt(error / (norm + 1e-300)) << " (bound " << relative
         << "), largest |want| " << most;
}

template <class T>
::testing::AssertionResult Identical(const std::string& name, const std::vector<T>& a,
                                     const std::vector<T>& b) {
  if (a.size() == b.size() &&
      (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0)) {
    return ::testing::AssertionSuccess();
  }
  size_t i = 0;
  while (i < a.size() && i < b.size() && std::memcmp(&a[i], &b[i], sizeof(T)) == 0) ++i;
  return ::testing::AssertionFailure() << name << ": bits differ first at element " << i;
}

// A tensor that a kernel writes: its name, the CPU's result, the tolerance, and its contents before
// the call (NaN when empty).
struct Output {
  std::string name;
  std::vector<float> want;
  DType dtype = DType::kBf16;
  double relative = 8e-3;
  double floor = 1e-6;
  std::vector<float> before = {};
};

// Calls `run` twice with fresh outputs. The first results must be near the expected ones, the
// second must have the same bits as the first.
template <class Run>
void ExpectOnGpu(const std::vector<Output>& outputs, Run run) {
  std::vector<std::vector<uint8_t>> first;
  for (int round = 0; round < 2; ++round) {
    std::vector<DeviceTensor> tensors;
    for (const Output& output : outputs) {
      const auto size = static_cast<int64_t>(output.want.size());
      if (output.before.empty()) {
        tensors.emplace_back(size, output.dtype);
      } else {
        tensors.push_back(output.dtype == DType::kF32 ? ToDeviceF32(output.before)
                                                      : ToDevice(output.before));
      }
    }
    const absl::Status status = run(tensors);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::vector<uint8_t> bytes = tensors[i].Bytes();
      if (round == 0) {
        EXPECT_TRUE(Near(outputs[i].name, tensors[i].Floats(), outputs[i].want, outputs[i].relative,
                         outputs[i].floor));
        first.push_back(bytes);
      } else {
        EXPECT_TRUE(Identical(outputs[i].name + " again", bytes, first[i]));
      }
    }
  }
}

// Tolerance for one bf16 output after sums of bf16-rounded weights: two unit roundoffs of 2^-9, and
// the same again as margin.
inline constexpr double kBf16Output = 8e-3;
// Gradients have three roundings (weights, their gradients, the result).
inline constexpr double kBf16Gradient = 1.2e-2;

}  // namespace nsa::testing
