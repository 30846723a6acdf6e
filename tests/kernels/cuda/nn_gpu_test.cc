// The families of kernels/nn on the GPU against the CPU implementation, on the same bf16-rounded
// inputs. Outputs start as NaN, and each case runs twice to check for equal bits.
#include <array>
#include <numeric>

#include "kernels/cuda/device.h"
#include "kernels/nn/activation.h"
#include "kernels/nn/copy.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/rope.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/global_norm.h"
#include "kernels/optimizer/parameters_hash.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda/device.h"

namespace nsa::testing {
namespace {

using Tensors = std::vector<DeviceTensor>;

std::span<const float> In(const std::vector<float>& v) { return v; }
std::span<const int32_t> In(const std::vector<int32_t>& v) { return v; }
std::span<float> Out(std::vector<float>& v) { return v; }

std::vector<float> Rounded(int64_t size, uint32_t seed, float scale = 1) {
  return RoundToBf16(Random(size, seed, scale));
}

std::vector<int32_t> RandomTokens(int64_t size, int64_t vocab, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<int32_t> tokens(size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(engine() % vocab);
  return tokens;
}

const Exec kCpuExec{};
Exec GpuExec() { return Gpu::Get().exec(); }

class NnOnGpu : public GpuTest {};

// A program built for sm_80 alone (NSA_SM80) runs the sm_80 code. Any other program runs the code
// for the GPU's own architecture, if it has such code.
TEST_F(NnOnGpu, RunsTheKernelsThatAreMeantForIt) {
  const auto device = cuda::ReadDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  const auto architecture = cuda::KernelArchitecture();
  ASSERT_TRUE(architecture.ok()) << architecture.status();
#ifdef NSA_SM80
  EXPECT_EQ(*architecture, 80);
#else
  EXPECT_EQ(*architecture, device->compute_capability == 90 ? 90 : 80);
#endif
}

struct RowShape {
  int64_t rows, dim;
};
const std::array<RowShape, 8> kRowShapes = {
    {{1, 8}, {3, 64}, {17, 256}, {300, 768}, {5000, 104}, {33, 4096}, {21, 9224}, {3, 32768}}};

TEST_F(NnOnGpu, RmsNormEqualsTheCpuTruth) {
  for (const auto& [rows, dim] : kRowShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << dim);
    const std::vector<float> x = Rounded(rows * dim, 1, 3), w = Rounded(dim, 2);
    std::vector<float> y = Poisoned(rows * dim), rstd = Poisoned(rows);
    ASSERT_TRUE(RmsNorm(kCpuExec, {rows, dim, In(x), In(w), Out(y), Out(rstd)}).ok());
    const DeviceTensor dx = ToDevice(x), dw = ToDevice(w);
    ExpectOnGpu({{"y", y}, {"rstd", rstd, DType::kF32, 1e-5}}, [&](const Tensors& t) {
      return RmsNorm(GpuExec(), {rows, dim, dx, dw, t[0], t[1]});
    });
  }
}

TEST_F(NnOnGpu, RmsNormBackwardEqualsTheCpuTruth) {
  for (const auto& [rows, dim] : kRowShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << dim);
    const std::vector<float> x = Rounded(rows * dim, 1, 3), w = Rounded(dim, 2),
                             dy = Rounded(rows * dim, 3), before = Rounded(rows * dim, 4),
                             sums = Random(dim, 5);
    std::vector<float> y = Poisoned(rows * dim), rstd = Poisoned(rows), dx = before, dw = sums;
    ASSERT_TRUE(RmsNorm(kCpuExec, {rows, dim, In(x), In(w), Out(y), Out(rstd)}).ok());
    ASSERT_TRUE(
        RmsNormBackward(kCpuExec, {rows, dim, In(dy), In(x), In(w), In(rstd), Out(dx), Out(dw)})
            .ok());
    const DeviceTensor x_gpu = ToDevice(x), w_gpu = ToDevice(w), dy_gpu = ToDevice(dy),
                       rstd_gpu = ToDeviceF32(rstd);
    ExpectOnGpu({{"dx", dx, DType::kBf16, kBf16Output, 1e-6, before},
                 {"dweight", dw, DType::kF32, 1e-4, 1e-5, sums}},
                [&](const Tensors& t) {
                  return RmsNormBackward(GpuExec(),
                                         {rows, dim, dy_gpu, x_gpu, w_gpu, rstd_gpu, t[0], t[1]});
                });
  }
}

void ExpectActivationOfTheCpu(Activation kind) {
  for (const int64_t size : {1, 7, 8, 9, 255, 4096, 100003}) {
    SCOPED_TRACE(size);
    const std::vector<float> x = Rounded(size, 1, 20), dy = Rounded(size, 2);
    std::vector<float> y = Poisoned(size), dx = Poisoned(size);
    ASSERT_TRUE(Activate(kCpuExec, {In(x), Out(y), kind}).ok());
    ASSERT_TRUE(ActivateBackward(kCpuExec, {In(dy), In(x), Out(dx), kind}).ok());
    const DeviceTensor x_gpu = ToDevice(x), dy_gpu = ToDevice(dy);
    ExpectOnGpu({{"y", y}, {"dx", dx}}, [&](const Tensors& t) {
      const absl::Status status = Activate(GpuExec(), {x_gpu, t[0], kind});
      return status.ok() ? ActivateBackward(GpuExec(), {dy_gpu, x_gpu, t[1], kind}) : status;
    });
    // In place.
    ExpectOnGpu(
        {{"y", y, DType::kBf16, kBf16Output, 1e-6, x},
         {"dx", dx, DType::kBf16, kBf16Output, 1e-6, dy}},
        [&](const Tensors& t) {
          const absl::Status status = Activate(GpuExec(), {t[0], t[0], kind});
          return status.ok() ? ActivateBackward(GpuExec(), {t[1], x_gpu, t[1], kind}) : status;
        });
  }
}

TEST_F(NnOnGpu, ActivationsEqualTheCpuTruthAtEverySize) {
  for (const Activation kind : {Activation::kSilu, Activation::kRelu2}) {
    SCOPED_TRACE(kind == Activation::kSilu ? "silu" : "relu2");
    ExpectActivationOfTheCpu(kind);
  }
}

TEST_F(NnOnGpu, SiluOfLargeNumbersIsFinite) {
  const std::vector<float> x = RoundToBf16({-1e30f, -200, -90, 90, 200, 1e30f, 0, -0.0f});
  const DeviceTensor x_gpu = ToDevice(x), one = ToDevice(std::vector<float>(8, 1.0f));
  const DeviceTensor y(8, DType::kBf16), dx(8, DType::kBf16);
  ASSERT_TRUE(Activate(GpuExec(), {x_gpu, y}).ok());
  ASSERT_TRUE(ActivateBackward(GpuExec(), {one, x_gpu, dx}).ok());
  EXPECT_TRUE(Near("y", y.Floats(), {0, 0, 0, x[3], 200, x[5], 0, 0}, 1e-2));
  EXPECT_TRUE(Near("dx", dx.Floats(), {0, 0, 0, 1, 1, 1, 0.5f, 0.5f}, 1e-2));
}

TEST_F(NnOnGpu, EmbeddingEqualsTheCpuTruth) {
  for (const int64_t vocab : {256, 3000, 50304}) {
    SCOPED_TRACE(vocab);
    const int64_t rows = 3001, dim = 136;
    const std::vector<float> table = Rounded(vocab * dim, 1);
    const std::vector<int32_t> tokens = RandomTokens(rows, vocab, 2);
    std::vector<float> y = Poisoned(rows * dim);
    ASSERT_TRUE(Embedding(kCpuExec, {rows, vocab, dim, In(tokens), In(table), Out(y)}).ok());
    const DeviceTensor table_gpu = ToDevice(table), tokens_gpu = ToDevice(tokens);
    ExpectOnGpu({{"y", y, DType::kBf16, 1e-9, 0}}, [&](const Tensors& t) {
      return Embedding(GpuExec(), {rows, vocab, dim, tokens_gpu, table_gpu, t[0]});
    });
  }
}

// The same token in all rows, few tokens, many tokens: sums equal the CPU's within fp32 rounding.
TEST_F(NnOnGpu, EmbeddingBackwardEqualsTheCpuTruthWithRepeatedTokens) {
  for (const int64_t vocab : {256, 3000, 50304}) {
    for (const int64_t used : {int64_t{1}, int64_t{7}, vocab}) {
      for (const auto& [rows, dim] : std::array<RowShape, 3>{{{1, 8}, {3001, 136}, {700, 768}}}) {
        SCOPED_TRACE(::testing::Message() << vocab << " " << used << " " << rows << " x " << dim);
        std::vector<int32_t> tokens = RandomTokens(rows, used, 2);
        for (int32_t& token : tokens) token = static_cast<int32_t>(vocab - 1 - token);
        const std::vector<float> dy = Rounded(rows * dim, 3), before = Random(vocab * dim, 4);
        std::vector<float> dtable = before;
        ASSERT_TRUE(
            EmbeddingBackward(kCpuExec, {rows, vocab, dim, In(tokens), In(dy), Out(dtable)}).ok());
        const DeviceTensor dy_gpu = ToDevice(dy), tokens_gpu = ToDevice(tokens);
        ExpectOnGpu({{"dtable", dtable, DType::kF32, 1e-5, 1e-6, before}}, [&](const Tensors& t) {
          return EmbeddingBackward(GpuExec(), {rows, vocab, dim, tokens_gpu, dy_gpu, t[0]});
        });
      }
    }
  }
}

// `args` has the options; the CPU's results are computed here.
void ExpectCrossEntropyOnGpu(int64_t rows, int64_t vocab, CrossEntropyArgs args) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << vocab << ", softcap " << args.softcap
                                    << ", z_loss " << args.z_loss);
  const std::vector<float> logits = Rounded(rows * vocab, 1, 8);
  std::vector<int32_t> targets = RandomTokens(rows, vocab, 2);
  for (int64_t r = 0; r < rows; r += 5) targets[r] = -1;  // ignored; with one row, all are
  std::vector<float> row_loss = Poisoned(rows), mean = Poisoned(1),
                     dlogits = Poisoned(rows * vocab);
  const auto run = [&](const Exec& exec, ConstTensor x, ConstTensor of_targets, Tensor losses,
                       Tensor mean_loss, Tensor dx) {
    args.rows = rows, args.vocab = vocab, args.gradient_scale = 0.25f;
    args.logits = x, args.targets = of_targets;
    args.row_loss = losses, args.mean_loss = mean_loss, args.dlogits = dx;
    return CrossEntropy(exec, args);
  };
  ASSERT_TRUE(run(kCpuExec, In(logits), In(targets), Out(row_loss), Out(mean), Out(dlogits)).ok());
  const DeviceTensor logits_gpu = ToDevice(logits), targets_gpu = ToDevice(targets);
  // The two tanh are within 5 units of each other, so 1 − tanh² is within 10 and a gradient, at
  // most 0.25 times that, within 2e-7.
  const double floor = args.softcap > 0 ? 3e-7 : 1e-7;
  const std::vector<Output> outputs = {{"row_loss", row_loss, DType::kF32, 1e-5, 1e-5},
                                       {"mean", mean, DType::kF32, 1e-5, 1e-5},
                                       {"dlogits", dlogits, DType::kBf16, kBf16Output, floor}};
  ExpectOnGpu(outputs, [&](const Tensors& t) {
    return run(GpuExec(), logits_gpu, targets_gpu, t[0], t[1], t[2]);
  });
  // dlogits in place of the logits; without dlogits.
  std::vector<Output> in_place = outputs;
  in_place[2].before = logits;
  ExpectOnGpu(in_place, [&](const Tensors& t) {
    return run(GpuExec(), t[2], targets_gpu, t[0], t[1], t[2]);
  });
  ExpectOnGpu({outputs[0], outputs[1]}, [&](const Tensors& t) {
    return run(GpuExec(), logits_gpu, targets_gpu, t[0], t[1], {});
  });
}

TEST_F(NnOnGpu, CrossEntropyEqualsTheCpuTruth) {
  for (const int64_t vocab : {2, 33, 256, 5000, 50257, 50304}) {
    for (const int64_t rows : {1, 67}) ExpectCrossEntropyOnGpu(rows, vocab, {});
  }
}

// A vocabulary for each kernel, and for each number of threads to a row.
TEST_F(NnOnGpu, CrossEntropyWithSoftcapAndZLossEqualsTheCpuTruth) {
  for (const int64_t vocab : {33, 256, 5000, 50304}) {
    ExpectCrossEntropyOnGpu(67, vocab, {.softcap = 2});
    ExpectCrossEntropyOnGpu(67, vocab, {.z_loss = 0.01f});
    ExpectCrossEntropyOnGpu(67, vocab, {.softcap = 30, .z_loss = 0.01f});
  }
}

TEST_F(NnOnGpu, CrossEntropyOfExtremeLogitsIsFinite) {
  const int64_t rows = 2, vocab = 256;
  std::vector<float> logits(rows * vocab, -3e4f);
  logits[5] = logits[vocab + 9] = 3e4f;
  const std::vector<int32_t> targets = {5, 10};
  std::vector<float> row_loss(rows), mean(1), dlogits(rows * vocab);
  logits = RoundToBf16(logits);
  ASSERT_TRUE(CrossEntropy(kCpuExec, {rows, vocab, In(logits), In(targets), Out(row_loss),
                                      Out(mean), 1, Out(dlogits)})
                  .ok());
  const DeviceTensor logits_gpu = ToDevice(logits), targets_gpu = ToDevice(targets);
  ExpectOnGpu(
      {{"row_loss", row_loss, DType::kF32, 1e-5},
       {"mean", mean, DType::kF32, 1e-5},
       {"dlogits", dlogits}},
      [&](const Tensors& t) {
        return CrossEntropy(GpuExec(), {rows, vocab, logits_gpu, targets_gpu, t[0], t[1], 1, t[2]});
      });
}

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

TEST_F(NnOnGpu, AdamWEqualsTheCpuTruth) {
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
TEST_F(NnOnGpu, AdamWSkipsWhenTheDeviceSaysSo) {
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

TEST_F(NnOnGpu, GlobalNormEqualsTheCpuTruth) {
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

TEST_F(NnOnGpu, GlobalNormTellsOfNonFiniteValues) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x = Random(9001, 1);
    x[8999] = bad;
    const DeviceTensor x_gpu = ToDeviceF32(x), norm(1, DType::kF32);
    ASSERT_TRUE(GlobalNorm(GpuExec(), {x_gpu, norm}).ok());
    EXPECT_FALSE(std::isfinite(norm.Floats()[0])) << bad;
  }
}

TEST_F(NnOnGpu, ParametersHashIsThatOfTheCpu) {
  for (const int64_t size : {0, 1, 31, 16384, 16385, 3000001}) {
    SCOPED_TRACE(size);
    std::vector<float> x = Random(size, 1);
    if (size > 2) x[0] = -0.0f, x[1] = NAN, x[2] = -INFINITY;
    uint64_t want = 0;
    ASSERT_TRUE(ParametersHash(kCpuExec, {In(x), &want}).ok());
    const DeviceTensor x_gpu = ToDeviceF32(x);
    const DeviceTensor hash(1, DType::kI64);
    auto* const to = static_cast<uint64_t*>(hash.tensor().data);
    for (int repeat = 0; repeat < 3; ++repeat) {
      ASSERT_TRUE(ParametersHash(GpuExec(), {x_gpu, to}).ok());
      EXPECT_EQ(hash.Raw<uint64_t>()[0], want) << "time " << repeat;
    }
    if (size == 0) continue;
    uint32_t bits = std::bit_cast<uint32_t>(x[size - 1]) ^ 1;
    x[size - 1] = std::bit_cast<float>(bits);
    ASSERT_TRUE(ParametersHash(GpuExec(), {ToDeviceF32(x), to}).ok());
    EXPECT_NE(hash.Raw<uint64_t>()[0], want) << "the last bit of the last value";
  }
}

TEST_F(NnOnGpu, WidthsThatVectorsDoNotDivideAreRefused) {
  const DeviceTensor x(3 * 12, DType::kBf16), w(12, DType::kBf16), y(3 * 12, DType::kBf16),
      f(12, DType::kF32), r(3, DType::kF32);
  const DeviceTensor tokens = ToDevice(std::vector<int32_t>{0, 1, 2});
  EXPECT_EQ(RmsNorm(GpuExec(), {3, 12, x, w, y, {}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNormBackward(GpuExec(), {3, 12, x, x, w, r, y, f}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Embedding(GpuExec(), {3, 3, 12, tokens, x, y}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NnOnGpu, CopyAndZeroTouchExactlyTheirTensor) {
  const std::vector<float> x = Random(1001, 1);
  const DeviceTensor from = ToDeviceF32(x), to = ToDeviceF32(Random(1003, 2));
  const std::vector<float> before = to.Floats();
  const Tensor middle{static_cast<float*>(to.tensor().data) + 1, 1001, DType::kF32};
  ASSERT_TRUE(Copy(GpuExec(), from, middle).ok());
  std::vector<float> after = to.Floats();
  EXPECT_EQ(std::vector<float>(after.begin() + 1, after.end() - 1), x);
  ASSERT_TRUE(Zero(GpuExec(), middle).ok());
  after = to.Floats();
  EXPECT_EQ(std::vector<float>(after.begin() + 1, after.end() - 1), std::vector<float>(1001, 0.0f));
  EXPECT_EQ(after.front(), before.front());
  EXPECT_EQ(after.back(), before.back());
}

// Both directions, in place, every head width, positions up to 65,535 (whose angles need more
// precision than fp32), a scale and another base.
TEST_F(NnOnGpu, RopeEqualsTheCpuTruth) {
  struct Shape {
    int32_t batch, seq_len, heads, dim;
    float base, scale;
  };
  for (const Shape& s : {Shape{1, 1, 1, 16, 10000, 1}, Shape{2, 61, 12, 64, 10000, 1},
                         Shape{1, 300, 3, 32, 500000, 4}, Shape{2, 129, 2, 128, 10000, 0.5f},
                         Shape{1, 65536, 1, 64, 10000, 1}}) {
    for (const bool inverse : {false, true}) {
      SCOPED_TRACE(::testing::Message() << s.seq_len << " " << s.dim << " " << inverse);
      const std::vector<float> x =
          Rounded(int64_t{1} * s.batch * s.seq_len * s.heads * s.dim, 1, 2);
      std::vector<float> y = Poisoned(static_cast<int64_t>(x.size()));
      RopeArgs args{s.batch, s.seq_len, s.heads, s.dim, s.base, s.scale, inverse, In(x), Out(y)};
      args.first = 1000 * (s.heads - 1);
      ASSERT_TRUE(Rope(kCpuExec, args).ok());
      const DeviceTensor x_gpu = ToDevice(x);
      ExpectOnGpu({{"y", y, DType::kBf16, 4e-3}}, [&](const Tensors& t) {
        args.x = x_gpu, args.y = t[0];
        return Rope(GpuExec(), args);
      });
      ExpectOnGpu({{"y in place", y, DType::kBf16, 4e-3, 1e-6, x}}, [&](const Tensors& t) {
        args.x = t[0], args.y = t[0];
        return Rope(GpuExec(), args);
      });
    }
  }
}

}  // namespace
}  // namespace nsa::testing
