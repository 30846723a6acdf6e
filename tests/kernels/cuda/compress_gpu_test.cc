// Compression on the GPU against the CPU implementation. Outputs start as NaN, and each case runs
// twice to check for equal bits.
#include <algorithm>
#include <cmath>

#include "kernels/nsa/compress/compress.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

using Tensors = std::vector<DeviceTensor>;

// Besides the common cases, blocks whose inputs do not fill chunks of 64, that overlap by more than
// half or not at all, and more rows than small tiles are used for.
std::vector<Case> Shapes() {
  std::vector<Case> cases = SmallCases();
  // {B, S, H, G, dk, dv, l, d, l', n, w}
  cases.push_back({"m7c", {2, 1111, 12, 2, 64, 64, 32, 16, 64, 16, 512}});
  cases.push_back({"m7c large batch", {3, 11000, 12, 2, 64, 64, 32, 16, 64, 16, 512}});
  cases.push_back({"wide heads", {1, 700, 8, 2, 128, 128, 32, 16, 64, 6, 256}});
  cases.push_back(
      {"wide heads, widths of the paper", {1, 700, 8, 2, 192, 128, 32, 16, 64, 6, 256}});
  cases.push_back(
      {"wide heads, keys of 192, large batch", {3, 11000, 8, 2, 192, 16, 32, 16, 64, 6, 256}});
  cases.push_back(
      {"wide heads, keys of 192, blocks of five", {1, 401, 4, 2, 192, 64, 5, 5, 10, 4, 64}});
  cases.push_back({"narrow heads", {1, 3000, 8, 1, 16, 32, 16, 8, 32, 4, 64}});
  cases.push_back({"three groups", {2, 333, 6, 3, 32, 32, 12, 4, 16, 4, 64}});
  cases.push_back({"blocks of five", {1, 401, 4, 2, 16, 64, 5, 5, 10, 4, 64}});
  cases.push_back({"blocks of 128", {1, 900, 4, 2, 64, 128, 128, 8, 16, 4, 64}});
  return cases;
}

void Round(std::vector<float>* values) { *values = RoundToBf16(*values); }

// φ mlp rounds the hidden units, their activation, their gradient and the results.
constexpr double kPhiBound = 2e-2;

class CompressOnGpu : public GpuTestWith<Case> {};

TEST_P(CompressOnGpu, AverageEqualsTheCpuTruth) {
  const NsaShape& s = GetParam().shape;
  for (const int32_t width : {s.d_k, s.d_v}) {
    const int64_t cmp = int64_t{1} * s.batch * s.cmp_blocks() * s.n_kv_groups * width;
    const int64_t all = int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * width;
    const std::vector<float> x = RoundToBf16(Random(all, 1)), dy = RoundToBf16(Random(cmp, 2));
    std::vector<float> y = Poisoned(cmp), dx = Poisoned(all);
    ASSERT_TRUE(Compress({}, {.shape = s, .width = width, .x = Span(x), .y = Span(y)}).ok());
    ASSERT_TRUE(
        CompressBackward({}, {.shape = s, .width = width, .dy = Span(dy), .dx = Span(dx)}).ok());
    const DeviceTensor x_gpu = ToDevice(x), dy_gpu = ToDevice(dy);
    ExpectOnGpu({{"y", y}, {"dx", dx}}, [&](const Tensors& t) {
      const absl::Status status =
          Compress(Gpu::Get().exec(), {.shape = s, .width = width, .x = x_gpu, .y = t[0]});
      if (!status.ok()) return status;
      return CompressBackward(Gpu::Get().exec(),
                              {.shape = s, .width = width, .dy = dy_gpu, .dx = t[1]});
    });
  }
}

void CompareMlp(const NsaShape& s, int32_t width) {
  const int64_t cmp_rows = int64_t{1} * s.batch * s.cmp_blocks() * s.n_kv_groups;
  const int64_t all = int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * width;
  const std::vector<float> x = RoundToBf16(Random(all, 1)),
                           dy = RoundToBf16(Random(cmp_rows * width, 2));
  PhiValues phi = RandomPhi(s, width, 20), before = RandomPhi(s, width, 40), grads = before;
  for (auto* v : {&phi.pe, &phi.w1, &phi.b1, &phi.w2, &phi.b2}) Round(v);
  std::vector<float> y = Poisoned(cmp_rows * width), dx = Poisoned(all),
                     hidden = Poisoned(cmp_rows * PhiHidden(width)), d_hidden = hidden;
  CompressArgs args{.shape = s,
                    .width = width,
                    .phi = Phi::kMlp,
                    .x = Span(x),
                    .params = ParamsOf(phi),
                    .hidden = Span(hidden),
                    .y = Span(y)};
  CompressBackwardArgs back{.shape = s,
                            .width = width,
                            .phi = Phi::kMlp,
                            .x = Span(x),
                            .params = ParamsOf(phi),
                            .hidden = Span(std::as_const(hidden)),
                            .dy = Span(dy),
                            .d_hidden = Span(d_hidden),
                            .dx = Span(dx),
                            .grads = GradsOf(grads)};
  ASSERT_TRUE(Compress({}, args).ok());
  ASSERT_TRUE(CompressBackward({}, back).ok());
  const DeviceTensor x_gpu = ToDevice(x), dy_gpu = ToDevice(dy), pe = ToDevice(phi.pe),
                     w1 = ToDevice(phi.w1), b1 = ToDevice(phi.b1), w2 = ToDevice(phi.w2),
                     b2 = ToDevice(phi.b2);
  args.x = back.x = x_gpu, back.dy = dy_gpu;
  args.params = back.params = {pe, w1, b1, w2, b2};
  const DType f32 = DType::kF32;
  // Gradients of parameters are sums over all blocks of products that have those rounding errors.
  ExpectOnGpu({{"hidden", hidden, DType::kBf16, kPhiBound},
               {"y", y, DType::kBf16, kPhiBound},
               {"dx", dx, DType::kBf16, kPhiBound},
               {"pe", grads.pe, f32, kPhiBound, 1e-5, before.pe},
               {"w1", grads.w1, f32, kPhiBound, 1e-5, before.w1},
               {"b1", grads.b1, f32, kPhiBound, 1e-5, before.b1},
               {"w2", grads.w2, f32, kPhiBound, 1e-5, before.w2},
               {"b2", grads.b2, f32, kPhiBound, 1e-5, before.b2}},
              [&](const Tensors& t) {
                const DeviceTensor d_hidden_gpu(cmp_rows * PhiHidden(width), DType::kBf16);
                args.hidden = t[0], args.y = t[1];
                back.hidden = t[0], back.d_hidden = d_hidden_gpu, back.dx = t[2];
                back.grads = {t[3], t[4], t[5], t[6], t[7]};
                absl::Status status = Compress(Gpu::Get().exec(), args);
                if (status.ok()) status = CompressBackward(Gpu::Get().exec(), back);
                CheckCuda(cudaDeviceSynchronize(), "compress");
                return status;
              });
}

TEST_P(CompressOnGpu, MlpEqualsTheCpuTruth) {
  CompareMlp(GetParam().shape, GetParam().shape.d_k);
  CompareMlp(GetParam().shape, GetParam().shape.d_v);
}

// One tensor of a layer on the GPU, forward and backward.
struct OnGpu {
  OnGpu(const NsaShape& s, int32_t width, Phi phi, uint64_t seed)
      : rows(int64_t{1} * s.batch * s.cmp_blocks() * s.n_kv_groups),
        all(int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * width),
        mlp(phi == Phi::kMlp),
        params(mlp ? RandomPhi(s, width, seed) : PhiValues{}),
        x(ToDevice(Random(all, seed + 20))),
        dy(ToDevice(Random(rows * width, seed + 21))),
        pe(ToDevice(params.pe)),
        w1(ToDevice(params.w1)),
        b1(ToDevice(params.b1)),
        w2(ToDevice(params.w2)),
        b2(ToDevice(params.b2)),
        d_hidden(mlp ? rows * PhiHidden(width) : 0, DType::kBf16) {
    for (const int64_t size : {mlp ? rows * PhiHidden(width) : 0, rows * width, all}) {
      out.emplace_back(size, DType::kBf16);
    }
    for (const auto* v : {&params.pe, &params.w1, &params.b1, &params.w2, &params.b2}) {
      out.push_back(ToDeviceF32(*v));
    }
    forward = {s, width, phi, x, {pe, w1, b1, w2, b2}, out[0], out[1]};
    backward = {s,      width, phi,      x,      {pe, w1, b1, w2, b2},
                out[0], dy,    d_hidden, out[2], {out[3], out[4], out[5], out[6], out[7]}};
  }

  int64_t rows, all;
  bool mlp;
  PhiValues params;
  DeviceTensor x, dy, pe, w1, b1, w2, b2, d_hidden;
  std::vector<DeviceTensor> out;  // hidden, y, dx, gradients of the parameters
  CompressArgs forward;
  CompressBackwardArgs backward;
};

TEST_P(CompressOnGpu, KeysAndValuesTogetherHaveTheBitsOfEachAlone) {
  const NsaShape& s = GetParam().shape;
  const Exec& exec = Gpu::Get().exec();
  for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
    const OnGpu keys(s, s.d_k, phi, 1), values(s, s.d_v, phi, 100);
    const OnGpu keys_alone(s, s.d_k, phi, 1), values_alone(s, s.d_v, phi, 100);
    ASSERT_TRUE(CompressKeysAndValues(exec, keys.forward, values.forward).ok());
    ASSERT_TRUE(CompressKeysAndValuesBackward(exec, keys.backward, values.backward).ok());
    for (const OnGpu* alone : {&keys_alone, &values_alone}) {
      ASSERT_TRUE(Compress(exec, alone->forward).ok());
      ASSERT_TRUE(CompressBackward(exec, alone->backward).ok());
    }
    CheckCuda(cudaDeviceSynchronize(), "compress");
    for (size_t i = 0; i < keys.out.size(); ++i) {
      EXPECT_EQ(keys.out[i].Bytes(), keys_alone.out[i].Bytes()) << "keys, output " << i;
      EXPECT_EQ(values.out[i].Bytes(), values_alone.out[i].Bytes()) << "values, output " << i;
    }
  }
}

// The block whose last token is at a position in device memory, from a cache that begins a little
// in front of it, into a cache of all blocks. Returns the cache of the blocks.
std::vector<float> CompressInCaches(const OnGpu& whole, int block, Branch cache) {
  CompressArgs args = whole.forward;
  NsaShape& s = args.shape;
  const int64_t row = int64_t{1} * s.n_kv_groups * args.width;
  const int begin = std::max(0, block * s.d - 3);
  std::vector<int32_t> at(1 + kBranches, 1 << 20);
  at[0] = block * s.d + s.l - 1, at[1 + cache] = begin;
  const std::vector<float> x = whole.x.Floats();
  const DeviceTensor x_gpu = ToDevice(std::vector<float>(x.begin() + begin * row, x.end())),
                     y(s.cmp_blocks() * row, DType::kBf16), at_gpu = ToDevice(at),
                     hidden(whole.mlp ? s.n_kv_groups * PhiHidden(args.width) : 0, DType::kBf16);
  s.seq_len = s.l;
  args.x = Tensor(x_gpu.tensor().data, s.l * row, DType::kBf16), args.hidden = hidden;
  args.y = Tensor(y.tensor().data, row, DType::kBf16), args.at = at_gpu, args.cache = cache;
  const absl::Status status = Compress(Gpu::Get().exec(), args);
  EXPECT_TRUE(status.ok()) << status;
  return y.Floats();
}

TEST_P(CompressOnGpu, ABlockOfACacheHasTheBitsOfTheSameBlockOfTheSequence) {
  NsaShape s = GetParam().shape;
  s.batch = 1;
  const int blocks = s.cmp_blocks();
  for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
    for (const int32_t width : {s.d_k, s.d_v}) {
      const OnGpu whole(s, width, phi, 1);
      ASSERT_TRUE(Compress(Gpu::Get().exec(), whole.forward).ok());
      const std::vector<float> all = whole.out[1].Floats();
      const int64_t row = int64_t{1} * s.n_kv_groups * width;
      for (const int block : {0, blocks / 2, blocks - 1}) {
        if (block < 0 || block >= blocks) continue;  // the sequence has none
        std::vector<float> expected = Poisoned(blocks * row);
        std::copy_n(all.begin() + block * row, row, expected.begin() + block * row);
        for (const Branch cache : {kCmp, kSel}) {
          const std::vector<float> got = CompressInCaches(whole, block, cache);
          for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i])))
                << "block " << block << ", number " << i << ": " << got[i] << ", not "
                << expected[i];
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CompressOnGpu, ::testing::ValuesIn(Shapes()), CaseName());

}  // namespace
}  // namespace nsa::testing
