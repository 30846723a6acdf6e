// The linear layer of one row on a GPU against fp64 mathematics.
#include <cmath>

#include "kernels/nn/rms_norm.h"
#include "kernels/nsa/decode/row_linear.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda/device.h"

namespace nsa::testing {
namespace {

struct Layer {
  int64_t in, out;
  bool has_norm, silu, has_add;
  std::vector<float> x, norm, w, add;

  Layer(int64_t inputs, int64_t outputs, int options)
      : in(inputs),
        out(outputs),
        has_norm((options & 1) != 0),
        silu((options & 2) != 0),
        has_add((options & 4) != 0),
        x(RoundToBf16(Random(inputs, 1))),
        norm(RoundToBf16(Random(inputs, 2))),
        w(RoundToBf16(Random(inputs * outputs, 3))),
        add(RoundToBf16(Random(outputs, 4))) {}

  std::vector<float> Expected() const {
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(in) + double{kRmsNormEps});
    std::vector<float> y(out);
    for (int64_t row = 0; row < out; ++row) {
      double z = 0;
      for (int64_t c = 0; c < in; ++c) {
        z += double{w[row * in + c]} * x[c] * (has_norm ? scale * norm[c] : 1.0);
      }
      if (silu) z /= 1 + std::exp(-z);
      y[row] = static_cast<float>(has_add ? z + add[row] : z);
    }
    return y;
  }
};

class RowLinearOnGpu : public GpuTest {};

TEST_F(RowLinearOnGpu, IsTheProductWithItsNormActivationAndSum) {
  for (const int64_t in : {8, 64, 264, 768, 1024, 1032, 3072, 4096}) {
    for (const int64_t out : {1, 3, 48, 769}) {
      for (int options = 0; options < 8; ++options) {
        SCOPED_TRACE(::testing::Message() << in << " → " << out << ", options " << options);
        const Layer layer(in, out, options);
        const DeviceTensor x = ToDevice(layer.x), norm = ToDevice(layer.norm),
                           w = ToDevice(layer.w), add = ToDevice(layer.add);
        ExpectOnGpu({{"y", layer.Expected(), DType::kBf16, 4e-3}},
                    [&](const std::vector<DeviceTensor>& t) {
                      RowLinearArgs args{.in = in, .out = out, .x = x, .w = w, .y = t[0]};
                      if (layer.has_norm) args.norm = norm;
                      args.silu = layer.silu;
                      if (layer.has_add) args.add = add;
                      return cuda::RowLinear(Gpu::Get().exec(), args);
                    });
      }
    }
  }
}

TEST_F(RowLinearOnGpu, AddsToItsOutputInPlace) {
  const Layer layer(768, 100, 4);
  const DeviceTensor x = ToDevice(layer.x), w = ToDevice(layer.w), y = ToDevice(layer.add);
  ASSERT_TRUE(
      cuda::RowLinear(Gpu::Get().exec(), {.in = 768, .out = 100, .x = x, .w = w, .add = y, .y = y})
          .ok());
  EXPECT_TRUE(Near("y", y.Floats(), layer.Expected(), 4e-3));
}

TEST(RowLinear, RefusesTensorsOfAnotherShape) {
  float memory = 0;
  const auto bf16s = [&](int64_t size) { return Tensor(&memory, size, DType::kBf16); };
  const RowLinearArgs good{.in = 64, .out = 10, .x = bf16s(64), .w = bf16s(640), .y = bf16s(10)};
  const auto refused = [](const RowLinearArgs& args) {
    return cuda::RowLinear({}, args).code() == absl::StatusCode::kInvalidArgument;
  };
  RowLinearArgs args = good;
  args.in = 63, args.x = bf16s(63), args.w = bf16s(630);
  EXPECT_TRUE(refused(args));
  args = good, args.x = bf16s(63);
  EXPECT_TRUE(refused(args));
  args = good, args.w = bf16s(641);
  EXPECT_TRUE(refused(args));
  args = good, args.y = Tensor(&memory, 10, DType::kF32);
  EXPECT_TRUE(refused(args));
  args = good, args.norm = bf16s(10);
  EXPECT_TRUE(refused(args));
  args = good, args.add = bf16s(64);
  EXPECT_TRUE(refused(args));
}

}  // namespace
}  // namespace nsa::testing
