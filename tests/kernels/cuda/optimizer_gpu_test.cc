// AdamW, the norm and the hash on the GPU against the CPU implementation.
#include <cmath>
#include <vector>

#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/global_norm.h"
#include "kernels/optimizer/parameters_hash.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda/device.h"

namespace nsa::testing {
namespace {

using Tensors = std::vector<DeviceTensor>;

std::span<const float> In(const std::vector<float>& v) { return v; }
std::span<float> Out(std::vector<float>& v) { return v; }

const Exec kCpuExec{};
Exec GpuExec() { return Gpu::Get().exec(); }

class OptimizerOnGpu : public GpuTest {};

struct Moments {
  std::vector<float> p, g, m, v;
};
Moments RandomMoments(int64_t size) {
  Moments x{Random(size, 1), Random(size, 2, 0.01f), Random(size, 3, 0.01f),
            Random(size, 4, 0.01f)};
  for (float& v : x.v) v = v * v;
  return x;
}

// 700 segments of odd sizes, which exceed one launch's table of runs; and a single segment.
std::vector<std::vector<AdamWSegment>> SegmentLists() {
  std::vector<AdamWSegment> many;
  for (int i = 0; i < 700; ++i) many.push_back({1 + i * 37 % 301, i % 3 != 0 || i > 680});
  std::vector<AdamWSegment>
      shared;  // with another optimizer, as a model's matrices and vectors are
  for (int i = 0; i < 500; ++i) shared.push_back({16 + i % 3 * 32, i % 2 == 0, i % 5 < 2});
  return {many,         {{100003, true}},
          {{1, false}}, {{5, false}, {8, true}, {0, false}, {3, true}},
          shared,       {{7, true, false}, {9, true}, {3, false, false}}};
}

TEST_F(OptimizerOnGpu, AdamWEqualsTheCpuTruth) {
  for (const std::vector<AdamWSegment>& segments : SegmentLists()) {
    int64_t size = 0;
    for (const AdamWSegment& segment : segments) size += segment.size;
    SCOPED_TRACE(size);
    const Moments before = RandomMoments(size);
    Moments x = before;
    AdamWArgs args{.parameters = Out(x.p),
                   .gradients = In(x.g),
                   .m = Out(x.m),
                   .v = Out(x.v),
                   .segments = segments,
                   .k = 3,
                   .lr = 1e-3f,
                   .weight_decay = 0.1f,
                   .gradient_scale = 0.5f};
    ASSERT_TRUE(AdamW(kCpuExec, args).ok());
    const DeviceTensor g = ToDeviceF32(before.g);
    const AdamWStep step = StepOf(args);
    const DeviceTensor device_step = ToDeviceF32(
        {step.lr, step.gradient_scale, step.inverse_bias1, step.inverse_bias2, step.skip});
    const std::vector<Output> outputs = {{"p", x.p, DType::kF32, 1e-6, 1e-7, before.p},
                                         {"m", x.m, DType::kF32, 1e-6, 1e-9, before.m},
                                         {"v", x.v, DType::kF32, 1e-6, 1e-9, before.v},
                                         {"half", x.p, DType::kBf16, kBf16Output, 1e-6, before.p}};
    for (const bool from_device : {false, true}) {
      SCOPED_TRACE(from_device ? "device_step" : "host step");
      ExpectOnGpu(outputs, [&](const Tensors& t) {
        AdamWArgs gpu = args;
        gpu.parameters = t[0], gpu.gradients = g, gpu.m = t[1], gpu.v = t[2], gpu.half = t[3];
        if (from_device) {
          gpu.device_step = device_step;
          gpu.k = 1, gpu.lr = 0, gpu.gradient_scale = 0;  // not used
        }
        const absl::Status status = AdamW(GpuExec(), gpu);
        // The bf16 copy is exactly the rounded parameters.
        const std::vector<float> p = t[0].Floats(), half = t[3].Floats();
        const std::vector<float> rounded = RoundToBf16(p);
        int64_t i = 0;
        for (const AdamWSegment& segment : segments) {
          for (const int64_t end = i + segment.size; i < end; ++i) {
            if (segment.update) {
              EXPECT_EQ(half[i], rounded[i]) << i;
            } else {
              EXPECT_EQ(p[i], before.p[i]) << i;
            }
          }
        }
        return status;
      });
    }
  }
}

// A step that the device found to be non-finite is skipped: nothing changes, for any gradients.
TEST_F(OptimizerOnGpu, AdamWSkipsWhenTheDeviceSaysSo) {
  const int64_t size = 1003;
  Moments x = RandomMoments(size);
  x.g[17] = NAN;
  const std::vector<AdamWSegment> segments = {{size, true}};
  const DeviceTensor p = ToDeviceF32(x.p), m = ToDeviceF32(x.m), v = ToDeviceF32(x.v),
                     g = ToDeviceF32(x.g), step = ToDeviceF32({1e-3f, NAN, 1, 1, 1}),
                     half = ToDevice(std::vector<float>(size, 2.0f));
  ASSERT_TRUE(AdamW(GpuExec(), {.parameters = p,
                                .gradients = g,
                                .m = m,
                                .v = v,
                                .segments = segments,
                                .half = half,
                                .device_step = step})
                  .ok());
  EXPECT_EQ(p.Floats(), x.p);
  EXPECT_EQ(m.Floats(), x.m);
  EXPECT_EQ(v.Floats(), x.v);
  EXPECT_EQ(half.Floats(), std::vector<float>(size, 2.0f));
}

TEST_F(OptimizerOnGpu, GlobalNormEqualsTheCpuTruth) {
  for (const int64_t size : {0, 1, 4096, 4097, 3000001}) {
    SCOPED_TRACE(size);
    const std::vector<float> x = Random(size, 1, 100);
    std::vector<float> norm = Poisoned(1);
    ASSERT_TRUE(GlobalNorm(kCpuExec, {In(x), Out(norm)}).ok());
    const DeviceTensor x_gpu = ToDeviceF32(x);
    ExpectOnGpu({{"norm", norm, DType::kF32, 1e-6}}, [&](const Tensors& t) {
      return GlobalNorm(GpuExec(), {x_gpu, t[0]});
    });
  }
}

TEST_F(OptimizerOnGpu, TheNormOfPartsEqualsTheCpuTruth) {
  const std::vector<float> x = Random(3000001, 1, 100);
  const std::vector<int64_t> cuts = {0, 16, 16, 1600000, 3000001};
  const DeviceTensor x_gpu = ToDeviceF32(x);
  const DeviceTensor sums_gpu(4, DType::kI64), norm_gpu(1, DType::kF32);
  auto* const to = static_cast<double*>(sums_gpu.tensor().data);
  std::vector<double> sums(4);
  for (size_t i = 0; i < 4; ++i) {
    const int64_t size = cuts[i + 1] - cuts[i];
    const auto* const from = static_cast<const float*>(x_gpu.tensor().data) + cuts[i];
    ASSERT_TRUE(
        SquareSum(kCpuExec, {.values = {x.data() + cuts[i], size, DType::kF32}, .sum = &sums[i]})
            .ok());
    ASSERT_TRUE(SquareSum(GpuExec(), {.values = {from, size, DType::kF32}, .sum = to + i}).ok());
  }
  std::vector<float> norm(1);
  ASSERT_TRUE(NormOfSums(kCpuExec, {.sums = sums.data(), .count = 4, .norm = Out(norm)}).ok());
  ASSERT_TRUE(NormOfSums(GpuExec(), {.sums = to, .count = 4, .norm = norm_gpu}).ok());
  EXPECT_NEAR(norm_gpu.Floats()[0] / norm[0], 1, 1e-6);
  const std::vector<double> on_gpu = sums_gpu.Raw<double>();
  EXPECT_EQ(on_gpu[1], 0) << "of an empty part";
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(on_gpu[i], sums[i], 1e-12 * sums[i]) << i;
}

TEST_F(OptimizerOnGpu, GlobalNormTellsOfNonFiniteValues) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x = Random(9001, 1);
    x[8999] = bad;
    const DeviceTensor x_gpu = ToDeviceF32(x), norm(1, DType::kF32);
    ASSERT_TRUE(GlobalNorm(GpuExec(), {x_gpu, norm}).ok());
    EXPECT_FALSE(std::isfinite(norm.Floats()[0])) << bad;
  }
}

TEST_F(OptimizerOnGpu, ParametersHashIsThatOfTheCpu) {
  for (const int64_t size : {0, 1, 31, 16384, 16385, 3000001}) {
    SCOPED_TRACE(size);
    std::vector<float> x = Random(size, 1);
    if (size > 2) x[0] = -0.0f, x[1] = NAN, x[2] = -INFINITY;
    uint64_t want = 0;
    ASSERT_TRUE(ParametersHash(kCpuExec, {.values = In(x), .hash = &want}).ok());
    const DeviceTensor x_gpu = ToDeviceF32(x);
    const DeviceTensor hash(1, DType::kI64);
    auto* const to = static_cast<uint64_t*>(hash.tensor().data);
    for (const int64_t first : {16, 1 << 20}) {
      uint64_t shifted = 0;
      ASSERT_TRUE(
          ParametersHash(kCpuExec, {.values = In(x), .first = first, .hash = &shifted}).ok());
      ASSERT_TRUE(ParametersHash(GpuExec(), {.values = x_gpu, .first = first, .hash = to}).ok());
      EXPECT_EQ(hash.Raw<uint64_t>()[0], shifted) << "from " << first;
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
      ASSERT_TRUE(ParametersHash(GpuExec(), {.values = x_gpu, .hash = to}).ok());
      EXPECT_EQ(hash.Raw<uint64_t>()[0], want) << "time " << repeat;
    }
    if (size == 0) continue;
    uint32_t bits = std::bit_cast<uint32_t>(x[size - 1]) ^ 1;
    x[size - 1] = std::bit_cast<float>(bits);
    ASSERT_TRUE(ParametersHash(GpuExec(), {.values = ToDeviceF32(x), .hash = to}).ok());
    EXPECT_NE(hash.Raw<uint64_t>()[0], want) << "the last bit of the last value";
  }
}

}  // namespace
}  // namespace nsa::testing
