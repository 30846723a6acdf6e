// The linear layer of one row on a GPU against fp64 mathematics, and the projections of one row
// against the kernels that they replace.
#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/nn/rms_norm.h"
#include "kernels/nsa/decode/project_row.h"
#include "kernels/nsa/decode/row_linear.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda/device.h"

namespace nsa::testing {
namespace {

constexpr std::optional<Activation> kActivations[] = {std::nullopt, Activation::kSilu,
                                                      Activation::kRelu2};

struct Layer {
  int64_t in, out;
  bool has_norm, has_add;
  std::optional<Activation> activation;
  float eps;  // of the norm: that of a model which does not say one, or as large as the squares
  std::vector<float> x, norm, w, add;

  Layer(int64_t inputs, int64_t outputs, int options)
      : in(inputs),
        out(outputs),
        has_norm((options & 1) != 0),
        has_add((options & 2) != 0),
        activation(kActivations[options / 4]),
        eps(outputs % 2 == 0 ? 0.5f : kRmsNormEps),
        x(RoundToBf16(Random(inputs, 1))),
        norm(RoundToBf16(Random(inputs, 2))),
        w(RoundToBf16(Random(inputs * outputs, 3))),
        add(RoundToBf16(Random(outputs, 4))) {}

  std::vector<float> Expected() const {
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(in) + double{eps});
    std::vector<float> y(out);
    for (int64_t row = 0; row < out; ++row) {
      double z = 0;
      for (int64_t c = 0; c < in; ++c) {
        z += double{w[row * in + c]} * x[c] * (has_norm ? scale * norm[c] : 1.0);
      }
      if (activation == Activation::kSilu) z /= 1 + std::exp(-z);
      if (activation == Activation::kRelu2) z = z > 0 ? z * z : 0;
      y[row] = static_cast<float>(has_add ? z + add[row] : z);
    }
    return y;
  }
};

class RowLinearOnGpu : public GpuTest {};

TEST_F(RowLinearOnGpu, IsTheProductWithItsNormActivationAndSum) {
  for (const int64_t in : {8, 64, 264, 768, 1024, 1032, 3072, 4096}) {
    for (const int64_t out : {1, 3, 48, 769}) {
      for (int options = 0; options < 12; ++options) {
        SCOPED_TRACE(::testing::Message() << in << " → " << out << ", options " << options);
        const Layer layer(in, out, options);
        const DeviceTensor x = ToDevice(layer.x), norm = ToDevice(layer.norm),
                           w = ToDevice(layer.w), add = ToDevice(layer.add);
        ExpectOnGpu(
            {{"y", layer.Expected(), DType::kBf16, 4e-3}}, [&](const std::vector<DeviceTensor>& t) {
              RowLinearArgs args{.in = in, .out = out, .x = x, .w = w, .y = t[0], .eps = layer.eps};
              if (layer.has_norm) args.norm = norm;
              args.activation = layer.activation;
              if (layer.has_add) args.add = add;
              return cuda::RowLinear(Gpu::Get().exec(), args);
            });
      }
    }
  }
}

TEST_F(RowLinearOnGpu, AddsToItsOutputInPlace) {
  const Layer layer(768, 100, 2);
  const DeviceTensor x = ToDevice(layer.x), w = ToDevice(layer.w), y = ToDevice(layer.add);
  ASSERT_TRUE(
      cuda::RowLinear(Gpu::Get().exec(), {.in = 768, .out = 100, .x = x, .w = w, .add = y, .y = y})
          .ok());
  EXPECT_TRUE(Near("y", y.Floats(), layer.Expected(), 4e-3));
}

struct Projected {
  DeviceTensor q, q_rotated;
  std::vector<DeviceTensor> k, v;  // caches; the last row is written

  Projected(const NsaShape& s, const std::vector<int32_t>& at)
      : q(s.q_size(), DType::kBf16), q_rotated(s.q_size(), DType::kBf16) {
    for (int c = 0; c < kBranches; ++c) {
      const int64_t rows = at[0] - at[1 + c] + 1;
      k.emplace_back(rows * s.k_size(), DType::kBf16);
      v.emplace_back(rows * s.v_size(), DType::kBf16);
    }
  }
  SplitProjectionsArgs Args(const NsaLayerConfig& config, const DeviceTensor& at,
                            const DeviceTensor& weights) const {
    SplitProjectionsArgs args{.config = config, .q = q, .q_rotated = q_rotated, .at = at};
    if (config.qk_norm_weights) args.norm_weights = {weights, weights};
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      args.k[c] = Tensor(k[c].tensor().data, config.shape.k_size(), DType::kBf16);
      args.v[c] = Tensor(v[c].tensor().data, config.shape.v_size(), DType::kBf16);
    }
    return args;
  }
};

// The last row of a cache; the rows in front of it must have kept their NaN.
std::vector<float> LastRow(const DeviceTensor& cache, int64_t width) {
  const std::vector<float> values = cache.Floats();
  const auto row = values.end() - width;
  EXPECT_TRUE(std::all_of(values.begin(), row, [](float x) { return std::isnan(x); }));
  return {row, values.end()};
}

void ExpectProjections(const NsaLayerConfig& config, int64_t in, bool has_bias) {
  const NsaShape& s = config.shape;
  const int64_t width = ProjectionWidth(config);
  const Layer layer(in, width, 1);
  const DeviceTensor x = ToDevice(layer.x), norm = ToDevice(layer.norm), w = ToDevice(layer.w);
  const DeviceTensor wide(width, DType::kBf16);
  const std::vector<int32_t> position = {1234, 1230, 1234, 1111};
  const DeviceTensor at = ToDevice(position);
  const Projected one(s, position), two(s, position);
  const DeviceTensor head_weights = ToDevice(RoundToBf16(Random(s.d_k, 8, 2)));
  const Exec exec = Gpu::Get().exec();
  const DeviceTensor bias = ToDevice(RoundToBf16(Random(width, 7, 1)));
  ASSERT_TRUE(cuda::ProjectRow(exec, {.in = in,
                                      .x = x,
                                      .norm = norm,
                                      .w = w,
                                      .bias = has_bias ? bias.tensor() : Tensor(),
                                      .split = one.Args(config, at, head_weights)})
                  .ok());
  // The bias is added before the product is rounded, as in ProjectRow; AddBias would round twice.
  ASSERT_TRUE(cuda::RowLinear(exec, {.in = in,
                                     .out = width,
                                     .x = x,
                                     .norm = norm,
                                     .w = w,
                                     .add = has_bias ? bias.tensor() : Tensor(),
                                     .y = wide,
                                     .eps = config.norm_eps})
                  .ok());
  SplitProjectionsArgs split = two.Args(config, at, head_weights);
  split.wide = wide;
  ASSERT_TRUE(SplitProjections(exec, split).ok());
  // Sums in another order where several warps have a row.
  EXPECT_TRUE(Near("q", one.q.Floats(), two.q.Floats(), 4e-3));
  EXPECT_TRUE(Near("q_rotated", one.q_rotated.Floats(), two.q_rotated.Floats(), 4e-3));
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    EXPECT_TRUE(Near("k", LastRow(one.k[c], s.k_size()), LastRow(two.k[c], s.k_size()), 4e-3));
    EXPECT_TRUE(Near("v", LastRow(one.v[c], s.v_size()), LastRow(two.v[c], s.v_size()), 4e-3));
  }
}

TEST_F(RowLinearOnGpu, ProjectsAndRotatesAndWritesToTheCaches) {
  // {B, S, H, G, dk, dv, l, d, l', n, w}
  for (const NsaShape& shape : {NsaShape{1, 1, 12, 2, 64, 64, 32, 16, 64, 16, 512},
                                NsaShape{1, 1, 8, 2, 128, 32, 32, 16, 64, 6, 256},
                                NsaShape{1, 1, 8, 2, 192, 128, 32, 16, 64, 6, 256},
                                NsaShape{1, 1, 5, 1, 16, 128, 16, 8, 32, 4, 64},
                                NsaShape{1, 1, 3, 3, 32, 16, 16, 8, 32, 4, 64}}) {
    for (int mask = 1; mask < 8; ++mask) {
      for (const int64_t in : {64, 768, 2040, 2048, 2056, 4096}) {
        NsaLayerConfig config{.shape = shape, .dtype = DType::kBf16};
        for (int c = 0; c < kBranches; ++c) config.branches[c] = (mask >> c & 1) != 0;
        if (mask == 7) config.rope_base = 500, config.rope_scale = 2;
        if (mask == 5) config.rope_scale = kNoRotation;
        if (mask % 2 == 0) {
          config.norm_eps = 0.5f;
          config.rope_scaling = {
              .kind = RopeScaling::Kind::kYarn, .factor = 4, .original = 300, .low = 1, .high = 32};
        }
        for (const bool qk_norm : {false, true}) {
          config.qk_norm = qk_norm;
          config.qk_norm_weights = qk_norm && in % 16 != 0;
          SCOPED_TRACE(::testing::Message() << shape.ToString() << ", branches " << mask << ", "
                                            << in << " inputs, qk_norm " << qk_norm);
          ExpectProjections(config, in, /*has_bias=*/in == 768 || in == 2056);
        }
      }
    }
  }
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
