// The families of kernels/nn on the GPU against the CPU implementation, on the same bf16-rounded
// inputs. Outputs start as NaN, and each case runs twice to check for equal bits.
#include <array>
#include <numeric>

#include "kernels/cuda/device.h"
#include "kernels/nn/activation.h"
#include "kernels/nn/bias.h"
#include "kernels/nn/copy.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/rope.h"
#include "kernels/nn/swiglu.h"
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

// Rows of small numbers, of which this eps is the larger part of the mean.
TEST_F(NnOnGpu, RmsNormAddsTheEpsOfTheModel) {
  for (const auto& [rows, dim] : kRowShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << dim);
    const std::vector<float> x = Rounded(rows * dim, 1, 0.05f), w = Rounded(dim, 2);
    std::vector<float> y = Poisoned(rows * dim), rstd = Poisoned(rows);
    const auto norm = [&, rows = rows, dim = dim](const Exec& exec, const ConstTensor& from,
                                                  const ConstTensor& weight, const Tensor& to,
                                                  const Tensor& factors) {
      return RmsNorm(exec, {.rows = rows,
                            .dim = dim,
                            .x = from,
                            .weight = weight,
                            .y = to,
                            .rstd = factors,
                            .eps = 0.01f});
    };
    ASSERT_TRUE(norm(kCpuExec, In(x), In(w), Out(y), Out(rstd)).ok());
    const DeviceTensor dx = ToDevice(x), dw = ToDevice(w);
    ExpectOnGpu({{"y", y}, {"rstd", rstd, DType::kF32, 1e-5}},
                [&](const Tensors& t) { return norm(GpuExec(), dx, dw, t[0], t[1]); });
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
    // With its output as well, which has the bits of the forward pass.
    const DeviceTensor forward(rows * dim, DType::kBf16), forward_rstd(rows, DType::kF32);
    ASSERT_TRUE(RmsNorm(GpuExec(), {rows, dim, x_gpu, w_gpu, forward, forward_rstd}).ok());
    ExpectOnGpu({{"dx", dx, DType::kBf16, kBf16Output, 1e-6, before},
                 {"dweight", dw, DType::kF32, 1e-4, 1e-5, sums},
                 {"y", y}},
                [&](const Tensors& t) {
                  const absl::Status status = RmsNormBackward(
                      GpuExec(), {rows, dim, dy_gpu, x_gpu, w_gpu, forward_rstd, t[0], t[1], t[2]});
                  EXPECT_TRUE(Identical("y", t[2].Bytes(), forward.Bytes()));
                  return status;
                });
  }
}

TEST_F(NnOnGpu, BiasesEqualTheCpuTruth) {
  for (const auto& [rows, width] :
       {RowShape{1, 8}, RowShape{3, 64}, RowShape{257, 120}, RowShape{4099, 4096}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << width);
    const std::vector<float> before = Rounded(rows * width, 1), bias = Rounded(width, 2),
                             sums = Random(width, 3);
    std::vector<float> y = before, dbias = sums;
    ASSERT_TRUE(AddBias(kCpuExec, {rows, width, In(bias), Out(y)}).ok());
    ASSERT_TRUE(BiasGradient(kCpuExec, {rows, width, In(before), Out(dbias)}).ok());
    const DeviceTensor bias_gpu = ToDevice(bias), dy_gpu = ToDevice(before);
    ExpectOnGpu({{"y", y, DType::kBf16, kBf16Output, 1e-6, before},
                 {"dbias", dbias, DType::kF32, 1e-4, 1e-5, sums}},
                [&](const Tensors& t) {
                  const absl::Status status = AddBias(GpuExec(), {rows, width, bias_gpu, t[0]});
                  if (!status.ok()) return status;
                  return BiasGradient(GpuExec(), {rows, width, dy_gpu, t[1]});
                });
  }
}

TEST_F(NnOnGpu, SwigluEqualsTheCpuTruth) {
  for (const auto& [rows, width] :
       {RowShape{1, 8}, RowShape{3, 64}, RowShape{257, 120}, RowShape{1000, 2048}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << width);
    const std::vector<float> x = Rounded(2 * rows * width, 1, 10), dy = Rounded(rows * width, 2);
    std::vector<float> y = Poisoned(rows * width), dx = Poisoned(2 * rows * width);
    ASSERT_TRUE(Swiglu(kCpuExec, {rows, width, In(x), Out(y)}).ok());
    ASSERT_TRUE(SwigluBackward(kCpuExec, {rows, width, In(dy), In(x), Out(dx), {}}).ok());
    const DeviceTensor x_gpu = ToDevice(x), dy_gpu = ToDevice(dy);
    ExpectOnGpu({{"y", y}, {"dx", dx}}, [&](const Tensors& t) {
      const absl::Status status = Swiglu(GpuExec(), {rows, width, x_gpu, t[0]});
      if (!status.ok()) return status;
      return SwigluBackward(GpuExec(), {rows, width, dy_gpu, x_gpu, t[1], {}});
    });
    // In place, with the output in place of its gradient: the bits of the forward pass.
    const DeviceTensor forward(rows * width, DType::kBf16);
    ASSERT_TRUE(Swiglu(GpuExec(), {rows, width, x_gpu, forward}).ok());
    ExpectOnGpu({{"y", y, DType::kBf16, kBf16Output, 1e-6, dy},
                 {"dx", dx, DType::kBf16, kBf16Output, 1e-6, x}},
                [&](const Tensors& t) {
                  const absl::Status status =
                      SwigluBackward(GpuExec(), {rows, width, t[0], t[1], t[1], t[0]});
                  EXPECT_TRUE(Identical("y", t[0].Bytes(), forward.Bytes()));
                  return status;
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
    // In place, with the output in place of the input: the bits of the forward pass.
    const DeviceTensor forward(size, DType::kBf16);
    ASSERT_TRUE(Activate(GpuExec(), {x_gpu, forward, kind}).ok());
    ExpectOnGpu(
        {{"y", y, DType::kBf16, kBf16Output, 1e-6, x},
         {"dx", dx, DType::kBf16, kBf16Output, 1e-6, dy}},
        [&](const Tensors& t) {
          const absl::Status status = ActivateBackward(GpuExec(), {t[1], t[0], t[1], kind, t[0]});
          EXPECT_TRUE(Identical("y", t[0].Bytes(), forward.Bytes()));
          return status;
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
  for (const int64_t vocab : {256, 3000, 8193, 50257}) {
    for (const int64_t used : {int64_t{1}, int64_t{7}, int64_t{40}, vocab}) {
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
  SCOPED_TRACE(::testing::Message() << rows << " x " << vocab);
  const int64_t columns = args.stride() > 0 ? args.stride() : vocab;
  const std::vector<float> logits = Rounded(rows * columns, 1, 8);
  std::vector<int32_t> targets = RandomTokens(rows, vocab, 2);
  for (int64_t r = 0; r < rows; r += 5) targets[r] = -1;  // ignored; with one row, all are
  std::vector<float> row_loss = Poisoned(rows), mean = Poisoned(1),
                     dlogits = Poisoned(rows * columns);
  const auto run = [&](const Exec& exec, ConstTensor x, ConstTensor of_targets, Tensor losses,
                       Tensor mean_loss, Tensor dx) {
    args.rows = rows, args.vocab = vocab, args.gradient_scale = 0.25f;
    args.logits = x, args.targets = of_targets;
    args.row_loss = losses, args.mean_loss = mean_loss, args.dlogits = dx;
    return CrossEntropy(exec, args);
  };
  ASSERT_TRUE(run(kCpuExec, In(logits), In(targets), Out(row_loss), Out(mean), Out(dlogits)).ok());
  const DeviceTensor logits_gpu = ToDevice(logits), targets_gpu = ToDevice(targets);
  const std::vector<Output> outputs = {{"row_loss", row_loss, DType::kF32, 1e-5, 1e-5},
                                       {"mean", mean, DType::kF32, 1e-5, 1e-5},
                                       {"dlogits", dlogits, DType::kBf16, kBf16Output, 1e-7}};
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
  for (const int64_t vocab : {2, 33, 256, 5000, 20000, 50257, 50304, 128256}) {
    for (const int64_t rows : {1, 67}) ExpectCrossEntropyOnGpu(rows, vocab, {});
  }
}

TEST_F(NnOnGpu, CrossEntropyWithColumnsBehindTheVocabularyEqualsTheCpuTruth) {
  for (const auto& [vocab, columns] : {std::pair<int64_t, int64_t>{2, 128},
                                       {33, 40},
                                       {257, 384},
                                       {5000, 5120},
                                       {20001, 20096},
                                       {50257, 50304},
                                       {128250, 128256},
                                       {51, 53}}) {
    SCOPED_TRACE(columns);
    ExpectCrossEntropyOnGpu(67, vocab, {.columns = columns});
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

TEST_F(NnOnGpu, ConvertRoundsAndWidensLikeTheCpu) {
  for (const int64_t size : {0, 1, 3, 4, 1021, 3000001}) {
    SCOPED_TRACE(size);
    std::vector<float> x = Random(size, 1, 100);
    if (size > 3) x[0] = -0.0f, x[1] = -INFINITY, x[2] = 1.00390625f, x[3] = 1.01171875f;
    std::vector<bf16> narrow(size);
    std::vector<float> wide(size);
    ASSERT_TRUE(Convert(kCpuExec, In(x), std::span<bf16>(narrow)).ok());
    ASSERT_TRUE(Convert(kCpuExec, std::span<const bf16>(narrow), Out(wide)).ok());
    const DeviceTensor x_gpu = ToDeviceF32(x);
    const DeviceTensor narrow_gpu(size, DType::kBf16), wide_gpu(size, DType::kF32);
    ASSERT_TRUE(Convert(GpuExec(), x_gpu, narrow_gpu).ok());
    ASSERT_TRUE(Convert(GpuExec(), narrow_gpu, wide_gpu).ok());
    EXPECT_EQ(wide_gpu.Floats(), wide);
  }
}

TEST_F(NnOnGpu, AddToAddsLikeTheCpu) {
  for (const int64_t size : {0, 1, 3, 4, 1021, 3000001}) {
    SCOPED_TRACE(size);
    const std::vector<float> from = Random(size, 1, 100);
    std::vector<float> to = Random(size, 2, 100);
    const DeviceTensor from_gpu = ToDeviceF32(from), to_gpu = ToDeviceF32(to);
    ASSERT_TRUE(AddTo(kCpuExec, In(from), Out(to)).ok());
    ASSERT_TRUE(AddTo(GpuExec(), from_gpu, to_gpu).ok());
    EXPECT_EQ(to_gpu.Floats(), to);
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

// More ranges than one launch takes, some of them empty.
TEST_F(NnOnGpu, ZeroRangesTouchesExactlyItsElements) {
  std::vector<float> want = Random(1 << 20, 1);
  const DeviceTensor to = ToDeviceF32(want);
  std::vector<ElementRange> ranges;
  std::mt19937 engine(5);
  for (int64_t begin = 4; begin < 1'000'000;) {
    const int64_t size = 4 * static_cast<int64_t>(engine() % (ranges.size() % 7 == 0 ? 5000 : 9));
    ranges.push_back({begin, size});
    std::fill_n(want.begin() + begin, size, 0.0f);
    begin += size + 4 * static_cast<int64_t>(1 + engine() % 1500);
  }
  ASSERT_GT(ranges.size(), 200u);
  ASSERT_TRUE(ZeroRanges(GpuExec(), to, ranges).ok());
  EXPECT_EQ(to.Floats(), want);
  for (const ElementRange& wrong : {ElementRange{2, 4}, {4, 2}, {(1 << 20) - 4, 8}, {-4, 4}}) {
    EXPECT_EQ(ZeroRanges(GpuExec(), to, {&wrong, 1}).code(), absl::StatusCode::kInvalidArgument);
  }
}

// Frequencies as they are, and stretched in both ways so that some pairs are kept, some mixed and
// some divided.
const std::array<RopeScaling, 3> kRopeScalings = {
    {{},
     {.kind = RopeScaling::Kind::kLlama3, .factor = 8, .original = 64, .low = 1, .high = 4},
     {.kind = RopeScaling::Kind::kYarn, .factor = 4, .original = 300, .low = 1, .high = 32}}};

// Both directions, in place, every head width, positions up to 65,535 (whose angles need more
// precision than fp32), a scale and another base.
TEST_F(NnOnGpu, RopeEqualsTheCpuTruth) {
  struct Shape {
    int32_t batch, seq_len, heads, dim;
    float base, scale;
    int scaling;
  };
  for (const Shape& s :
       {Shape{1, 1, 1, 16, 10000, 1, 0}, Shape{2, 61, 12, 64, 10000, 1, 0},
        Shape{1, 300, 3, 32, 500000, 4, 0}, Shape{2, 129, 2, 128, 10000, 0.5f, 0},
        Shape{2, 133, 5, 192, 10000, 2, 0}, Shape{1, 65536, 1, 64, 10000, 1, 0},
        Shape{2, 61, 12, 64, 10000, 1, 1}, Shape{1, 300, 3, 16, 500000, 1, 2},
        Shape{2, 129, 2, 128, 10000, 0.5f, 2}, Shape{2, 133, 5, 192, 1000000, 1, 1}}) {
    for (const bool inverse : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << s.seq_len << " " << s.dim << " " << inverse << ", scaling " << s.scaling);
      const std::vector<float> x =
          Rounded(int64_t{1} * s.batch * s.seq_len * s.heads * s.dim, 1, 2);
      std::vector<float> y = Poisoned(static_cast<int64_t>(x.size()));
      RopeArgs args{.batch = s.batch,
                    .seq_len = s.seq_len,
                    .heads = s.heads,
                    .head_dim = s.dim,
                    .base = s.base,
                    .scale = s.scale,
                    .scaling = kRopeScalings[s.scaling],
                    .inverse = inverse,
                    .x = In(x),
                    .y = Out(y),
                    .first = 1000 * (s.heads - 1)};
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

// Normalized heads of small numbers, of which this eps is the larger part of the mean, and their
// gradients.
TEST_F(NnOnGpu, RopeOfNormalizedHeadsEqualsTheCpuTruth) {
  for (const int32_t dim : {8, 16, 32, 64, 128, 192}) {
    const int64_t heads = int64_t{2} * 61 * 5, size = heads * dim;
    for (const RopeScaling& scaling : kRopeScalings) {
      SCOPED_TRACE(::testing::Message() << dim << ", scaling " << static_cast<int>(scaling.kind));
      const std::vector<float> x = Rounded(size, 1, 0.05f), dy = Rounded(size, 2);
      std::vector<float> y = Poisoned(size), rstd = Poisoned(heads), dx = Poisoned(size);
      RopeArgs args{.batch = 2,
                    .seq_len = 61,
                    .heads = 5,
                    .head_dim = dim,
                    .scaling = scaling,
                    .x = In(x),
                    .y = Out(y),
                    .first = 300,
                    .eps = 0.01f,
                    .normalize = true,
                    .rstd = Out(rstd)};
      ASSERT_TRUE(Rope(kCpuExec, args).ok());
      const DeviceTensor x_gpu = ToDevice(x), dy_gpu = ToDevice(dy);
      ExpectOnGpu({{"y", y}, {"rstd", rstd, DType::kF32, 1e-5}}, [&](const Tensors& t) {
        args.x = x_gpu, args.y = t[0], args.rstd = t[1];
        return Rope(GpuExec(), args);
      });
      const std::vector<float> forward = RoundToBf16(y);
      args.inverse = true, args.rstd = {};
      args.x = In(dy), args.y = Out(dx), args.y_forward = In(forward), args.rstd_forward = In(rstd);
      ASSERT_TRUE(Rope(kCpuExec, args).ok());
      const DeviceTensor forward_gpu = ToDevice(forward), rstd_gpu = ToDeviceF32(rstd);
      args.x = dy_gpu, args.y_forward = forward_gpu, args.rstd_forward = rstd_gpu;
      ExpectOnGpu({{"dx", dx}}, [&](const Tensors& t) {
        args.y = t[0];
        return Rope(GpuExec(), args);
      });
    }
  }
}

}  // namespace
}  // namespace nsa::testing
