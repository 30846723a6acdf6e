// Splitting and joining projections on the GPU against the CPU implementation. Outputs start as
// NaN, and each case runs twice to check for equal bits.
#include "kernels/nsa/layer/projections.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

using Tensors = std::vector<DeviceTensor>;

std::vector<NsaLayerConfig> Configs() {
  std::vector<NsaLayerConfig> out;
  std::vector<NsaShape> shapes = {{2, 1111, 12, 2, 64, 64, 32, 16, 64, 16, 512},
                                  {1, 700, 8, 2, 128, 32, 32, 16, 64, 6, 256},
                                  {3, 5, 5, 1, 16, 128, 16, 8, 32, 4, 64},
                                  {1, 33, 6, 6, 32, 16, 16, 8, 32, 4, 64},
                                  {1, 1, 2, 1, 16, 16, 8, 4, 8, 3, 4}};
  for (const NsaShape& shape : shapes) {
    for (int mask = 1; mask < 8; ++mask) {
      NsaLayerConfig config{.shape = shape};
      for (int c = 0; c < kBranches; ++c) config.branches[c] = (mask >> c & 1) != 0;
      out.push_back(config);
    }
  }
  out.back().rope_base = 500, out.back().rope_scale = 2;
  return out;
}

NsaLayerConfig OnGpu(NsaLayerConfig config) {
  config.dtype = DType::kBf16;
  return config;
}
int64_t WideSize(const NsaLayerConfig& config) {
  return int64_t{1} * config.shape.batch * config.shape.seq_len * ProjectionWidth(config);
}

class ProjectionsOnGpu : public GpuTest {};

TEST_F(ProjectionsOnGpu, AreHandedOutAndRotated) {
  for (const NsaLayerConfig& config : Configs()) {
    const NsaShape& s = config.shape;
    SCOPED_TRACE(s.ToString());
    const std::vector<float> wide = RoundToBf16(Random(WideSize(config), 1));
    std::vector<float> q = Poisoned(s.q_size()), q_rotated = q;
    std::array<std::vector<float>, kBranches> k, v;
    SplitProjectionsArgs args{
        .config = config, .wide = Span(wide), .q = Span(q), .q_rotated = Span(q_rotated)};
    args.first = 1000 * config.n_branches() - 1000;
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      k[c] = Poisoned(s.k_size()), v[c] = Poisoned(s.v_size());
      args.k[c] = Span(k[c]), args.v[c] = Span(v[c]);
    }
    ASSERT_TRUE(SplitProjections({}, args).ok());
    // Values that are not rotated are copied exactly.
    std::vector<Output> outputs = {{"q", q, DType::kBf16, 1e-9, 0},
                                   {"q_rotated", q_rotated, DType::kBf16, 4e-3}};
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      outputs.push_back({"k", k[c], DType::kBf16, 4e-3});
      outputs.push_back({"v", v[c], DType::kBf16, 1e-9, 0});
    }
    const DeviceTensor wide_gpu = ToDevice(wide);
    ExpectOnGpu(outputs, [&](const Tensors& t) {
      args.config = OnGpu(config), args.wide = wide_gpu, args.q = t[0], args.q_rotated = t[1];
      for (int c = 0, i = 2; c < kBranches; ++c) {
        if (config.branches[c]) args.k[c] = t[i], args.v[c] = t[i + 1], i += 2;
      }
      return SplitProjections(Gpu::Get().exec(), args);
    });
  }
}

TEST_F(ProjectionsOnGpu, GradientsAreRotatedBackAndGathered) {
  for (const NsaLayerConfig& config : Configs()) {
    const NsaShape& s = config.shape;
    SCOPED_TRACE(s.ToString());
    std::vector<float> dq = RoundToBf16(Random(s.q_size(), 1)), wide = Poisoned(WideSize(config));
    const std::vector<float> mean = RoundToBf16(Random(s.k_size(), 2));
    std::array<std::vector<float>, kBranches> dk, dv;
    JoinProjectionsArgs args{.config = config, .dq = Span(dq), .wide = Span(wide)};
    if (config.has_gate()) args.dq_mean = Span(mean);
    const DeviceTensor dq_gpu = ToDevice(dq), mean_gpu = ToDevice(mean);
    Tensors dk_gpu, dv_gpu;
    for (int c = 0; c < kBranches; ++c) {
      if (config.branches[c]) {
        dk[c] = RoundToBf16(Random(s.k_size(), 10 + c));
        dv[c] = RoundToBf16(Random(s.v_size(), 20 + c));
        args.dk[c] = Span(dk[c]), args.dv[c] = Span(std::as_const(dv[c]));
      }
      dk_gpu.push_back(ToDevice(dk[c])), dv_gpu.push_back(ToDevice(dv[c]));
    }
    ASSERT_TRUE(JoinProjections({}, args).ok());
    ExpectOnGpu({{"wide", wide, DType::kBf16, 4e-3}}, [&](const Tensors& t) {
      args.config = OnGpu(config), args.dq = dq_gpu, args.wide = t[0];
      if (config.has_gate()) args.dq_mean = mean_gpu;
      for (int c = 0; c < kBranches; ++c) {
        if (config.branches[c]) args.dk[c] = dk_gpu[c], args.dv[c] = dv_gpu[c];
      }
      return JoinProjections(Gpu::Get().exec(), args);
    });
  }
}

}  // namespace
}  // namespace nsa::testing
