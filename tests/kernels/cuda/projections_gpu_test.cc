// Splitting and joining projections on the GPU against the CPU implementation. Outputs start as
// NaN, and each case runs twice to check for equal bits.
#include "kernels/nsa/layer/projections.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

using Tensors = std::vector<DeviceTensor>;

// Frequencies as they are, or stretched so that some pairs are kept, some mixed and some divided.
RopeScaling ScalingOf(int mask) {
  using Kind = RopeScaling::Kind;
  if (mask % 3 == 1)
    return {.kind = Kind::kLlama3, .factor = 8, .original = 64, .low = 1, .high = 4};
  if (mask % 3 == 2)
    return {.kind = Kind::kYarn, .factor = 4, .original = 300, .low = 1, .high = 32};
  return {};
}

// Of each shape every set of branches. The larger eps are not small beside the squares of a head.
std::vector<NsaLayerConfig> Configs() {
  std::vector<NsaLayerConfig> out;
  std::vector<NsaShape> shapes = {{2, 1111, 12, 2, 64, 64, 32, 16, 64, 16, 512},
                                  {1, 700, 8, 2, 128, 32, 32, 16, 64, 6, 256},
                                  {2, 333, 32, 2, 192, 128, 32, 16, 64, 6, 256},
                                  {1, 37, 5, 1, 192, 16, 32, 16, 64, 6, 256},
                                  {3, 5, 5, 1, 16, 128, 16, 8, 32, 4, 64},
                                  {1, 33, 6, 6, 32, 16, 16, 8, 32, 4, 64},
                                  {1, 1, 2, 1, 16, 16, 8, 4, 8, 3, 4}};
  for (const NsaShape& shape : shapes) {
    for (int mask = 1; mask < 8; ++mask) {
      NsaLayerConfig config{.shape = shape, .rope_scaling = ScalingOf(mask)};
      if (mask % 2 == 0) config.norm_eps = 0.1f * static_cast<float>(mask);
      for (int c = 0; c < kBranches; ++c) config.branches[c] = (mask >> c & 1) != 0;
      out.push_back(config);
    }
  }
  out.back().rope_base = 500, out.back().rope_scale = 2;
  out[3].rope_scale = kNoRotation;
  const size_t plain = out.size();
  for (size_t i = 0; i < plain; ++i) {
    out.push_back(out[i]);
    out.back().qk_norm = true;
  }
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
    std::array<std::vector<float>, kBranches> k, v, k_rstd;
    std::vector<float> q_rstd = Poisoned(s.q_size() / s.d_k);
    SplitProjectionsArgs args{
        .config = config, .wide = Span(wide), .q = Span(q), .q_rotated = Span(q_rotated)};
    if (config.qk_norm) args.q_rstd = Span(q_rstd);
    args.first = 1000 * config.n_branches() - 1000;
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      k[c] = Poisoned(s.k_size()), v[c] = Poisoned(s.v_size());
      args.k[c] = Span(k[c]), args.v[c] = Span(v[c]);
      k_rstd[c] = Poisoned(s.k_size() / s.d_k);
      if (config.qk_norm) args.k_rstd[c] = Span(k_rstd[c]);
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
    // The factors at the end: sums in another order.
    for (int c = 0; config.qk_norm && c < kBranches; ++c) {
      if (config.branches[c]) outputs.push_back({"k_rstd", k_rstd[c], DType::kF32, 1e-5});
    }
    if (config.qk_norm) outputs.push_back({"q_rstd", q_rstd, DType::kF32, 1e-5});
    const DeviceTensor wide_gpu = ToDevice(wide);
    args.config = OnGpu(config), args.wide = wide_gpu;
    const auto run = [&](const Tensors& t) {
      size_t i = 0;
      args.q = t.size() == outputs.size() ? Tensor(t[i++]) : Tensor();
      args.q_rotated = t[i++];
      for (int c = 0; c < kBranches; ++c) {
        if (config.branches[c]) args.k[c] = t[i], args.v[c] = t[i + 1], i += 2;
      }
      for (int c = 0; config.qk_norm && c < kBranches; ++c) {
        if (config.branches[c]) args.k_rstd[c] = t[i++];
      }
      if (config.qk_norm) args.q_rstd = t.back();
      return SplitProjections(Gpu::Get().exec(), args);
    };
    ExpectOnGpu(outputs, run);
    ExpectOnGpu({outputs.begin() + 1, outputs.end()}, run);  // without q as projected
  }
}

// Without qk_norm the attention's backward does this (attention_gpu_test).
TEST_F(ProjectionsOnGpu, GradientsOfNormalizedHeadsAreRotatedBackAndGathered) {
  for (const NsaLayerConfig& config : Configs()) {
    if (!config.qk_norm) continue;
    const NsaShape& s = config.shape;
    SCOPED_TRACE(s.ToString());
    std::vector<float> dq = RoundToBf16(Random(s.q_size(), 1)), wide = Poisoned(WideSize(config));
    // Any numbers will do for what forward wrote: the gradient is linear in the others.
    const std::vector<float> q_rotated = RoundToBf16(Random(s.q_size(), 3, 1.5f)),
                             q_rstd = Random(s.q_size() / s.d_k, 4, 2.0f);
    const DeviceTensor q_rotated_gpu = ToDevice(q_rotated), q_rstd_gpu = ToDeviceF32(q_rstd);
    std::array<std::vector<float>, kBranches> k_rotated, k_rstd;
    const std::vector<float> mean = RoundToBf16(Random(s.k_size(), 2));
    std::array<std::vector<float>, kBranches> dk, dv;
    JoinProjectionsArgs args{.config = config, .dq = Span(dq), .wide = Span(wide)};
    if (config.has_gate()) args.dq_mean = Span(mean);
    args.q_rotated = Span(q_rotated), args.q_rstd = Span(q_rstd);
    const DeviceTensor dq_gpu = ToDevice(dq), mean_gpu = ToDevice(mean);
    Tensors dk_gpu, dv_gpu, k_rotated_gpu, k_rstd_gpu;
    for (int c = 0; c < kBranches; ++c) {
      if (config.branches[c]) {
        dk[c] = RoundToBf16(Random(s.k_size(), 10 + c));
        dv[c] = RoundToBf16(Random(s.v_size(), 20 + c));
        args.dk[c] = Span(dk[c]), args.dv[c] = Span(std::as_const(dv[c]));
        k_rotated[c] = RoundToBf16(Random(s.k_size(), 30 + c, 1.5f));
        k_rstd[c] = Random(s.k_size() / s.d_k, 40 + c, 2.0f);
        args.k_rotated[c] = Span(std::as_const(k_rotated[c]));
        args.k_rstd[c] = Span(std::as_const(k_rstd[c]));
      }
      dk_gpu.push_back(ToDevice(dk[c])), dv_gpu.push_back(ToDevice(dv[c]));
      k_rotated_gpu.push_back(ToDevice(k_rotated[c]));
      k_rstd_gpu.push_back(ToDeviceF32(k_rstd[c]));
    }
    ASSERT_TRUE(JoinProjections({}, args).ok());
    ExpectOnGpu({{"wide", wide, DType::kBf16, 4e-3}}, [&](const Tensors& t) {
      args.config = OnGpu(config), args.dq = dq_gpu, args.wide = t[0];
      if (config.has_gate()) args.dq_mean = mean_gpu;
      args.q_rotated = q_rotated_gpu, args.q_rstd = q_rstd_gpu;
      for (int c = 0; c < kBranches; ++c) {
        if (!config.branches[c]) continue;
        args.dk[c] = dk_gpu[c], args.dv[c] = dv_gpu[c];
        args.k_rotated[c] = k_rotated_gpu[c], args.k_rstd[c] = k_rstd_gpu[c];
      }
      return JoinProjections(Gpu::Get().exec(), args);
    });
  }
}

// The configs of normalized heads, with weights.
std::vector<NsaLayerConfig> WeightedConfigs() {
  std::vector<NsaLayerConfig> out;
  for (NsaLayerConfig config : Configs()) {
    if (!config.qk_norm) continue;
    config.qk_norm_weights = true;
    out.push_back(config);
  }
  return out;
}

TEST_F(ProjectionsOnGpu, NormalizedHeadsAreMultipliedByTheirWeights) {
  for (const NsaLayerConfig& config : WeightedConfigs()) {
    const NsaShape& s = config.shape;
    SCOPED_TRACE(s.ToString());
    const std::vector<float> wide = RoundToBf16(Random(WideSize(config), 1)),
                             q_weight = RoundToBf16(Random(s.d_k, 2, 2)),
                             k_weight = RoundToBf16(Random(s.d_k, 3, 2));
    std::vector<float> q_rotated = Poisoned(s.q_size()), q_unit = q_rotated;
    std::vector<float> q_rstd = Poisoned(s.q_size() / s.d_k);
    std::array<std::vector<float>, kBranches> k, v, k_unit, k_rstd;
    SplitProjectionsArgs args{.config = config,
                              .wide = Span(wide),
                              .q_rotated = Span(q_rotated),
                              .q_rstd = Span(q_rstd),
                              .norm_weights = {Span(q_weight), Span(k_weight)},
                              .q_unit = Span(q_unit)};
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      k[c] = k_unit[c] = Poisoned(s.k_size()), v[c] = Poisoned(s.v_size());
      k_rstd[c] = Poisoned(s.k_size() / s.d_k);
      args.k[c] = Span(k[c]), args.v[c] = Span(v[c]);
      args.k_unit[c] = Span(k_unit[c]), args.k_rstd[c] = Span(k_rstd[c]);
    }
    ASSERT_TRUE(SplitProjections({}, args).ok());
    std::vector<Output> outputs = {{"q_rotated", q_rotated, DType::kBf16, 4e-3},
                                   {"q_unit", q_unit, DType::kBf16, 4e-3},
                                   {"q_rstd", q_rstd, DType::kF32, 1e-5}};
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      outputs.push_back({"k", k[c], DType::kBf16, 4e-3});
      outputs.push_back({"v", v[c], DType::kBf16, 1e-9, 0});
      outputs.push_back({"k_unit", k_unit[c], DType::kBf16, 4e-3});
      outputs.push_back({"k_rstd", k_rstd[c], DType::kF32, 1e-5});
    }
    const DeviceTensor wide_gpu = ToDevice(wide), q_weight_gpu = ToDevice(q_weight),
                       k_weight_gpu = ToDevice(k_weight);
    args.config = OnGpu(config), args.wide = wide_gpu;
    args.norm_weights = {q_weight_gpu, k_weight_gpu};
    ExpectOnGpu(outputs, [&](const Tensors& t) {
      args.q_rotated = t[0], args.q_unit = t[1], args.q_rstd = t[2];
      size_t i = 3;
      for (int c = 0; c < kBranches; ++c) {
        if (!config.branches[c]) continue;
        args.k[c] = t[i], args.v[c] = t[i + 1], args.k_unit[c] = t[i + 2],
        args.k_rstd[c] = t[i + 3];
        i += 4;
      }
      return SplitProjections(Gpu::Get().exec(), args);
    });
  }
}

TEST_F(ProjectionsOnGpu, GradientsOfWeightedHeadsAndOfTheirWeightsEqualTheCpuTruth) {
  for (const NsaLayerConfig& config : WeightedConfigs()) {
    const NsaShape& s = config.shape;
    SCOPED_TRACE(s.ToString());
    // Any numbers will do for what forward wrote: the gradient is linear in the others.
    std::vector<float> dq = RoundToBf16(Random(s.q_size(), 1)), wide = Poisoned(WideSize(config));
    const std::vector<float> q_unit = RoundToBf16(Random(s.q_size(), 3, 1.5f)),
                             q_rstd = Random(s.q_size() / s.d_k, 4, 2.0f),
                             mean = RoundToBf16(Random(s.k_size(), 2)),
                             q_weight = RoundToBf16(Random(s.d_k, 5, 2)),
                             k_weight = RoundToBf16(Random(s.d_k, 6, 2)), sums = Random(s.d_k, 7);
    std::vector<float> dq_weight = sums, dk_weight = sums;
    const DeviceTensor dq_gpu = ToDevice(dq), mean_gpu = ToDevice(mean),
                       q_unit_gpu = ToDevice(q_unit), q_rstd_gpu = ToDeviceF32(q_rstd),
                       q_weight_gpu = ToDevice(q_weight), k_weight_gpu = ToDevice(k_weight);
    std::array<std::vector<float>, kBranches> dk, dv, k_unit, k_rstd;
    Tensors dk_gpu, dv_gpu, k_unit_gpu, k_rstd_gpu;
    JoinProjectionsArgs args{.config = config, .dq = Span(dq), .wide = Span(wide)};
    if (config.has_gate()) args.dq_mean = Span(mean);
    args.q_rstd = Span(q_rstd), args.q_unit = Span(q_unit);
    args.norm_weights = {Span(q_weight), Span(k_weight)};
    args.dq_weight = Span(dq_weight), args.dk_weight = Span(dk_weight);
    for (int c = 0; c < kBranches; ++c) {
      if (config.branches[c]) {
        dk[c] = RoundToBf16(Random(s.k_size(), 10 + c));
        dv[c] = RoundToBf16(Random(s.v_size(), 20 + c));
        k_unit[c] = RoundToBf16(Random(s.k_size(), 30 + c, 1.5f));
        k_rstd[c] = Random(s.k_size() / s.d_k, 40 + c, 2.0f);
        args.dk[c] = Span(dk[c]), args.dv[c] = Span(std::as_const(dv[c]));
        args.k_unit[c] = Span(std::as_const(k_unit[c]));
        args.k_rstd[c] = Span(std::as_const(k_rstd[c]));
      }
      dk_gpu.push_back(ToDevice(dk[c])), dv_gpu.push_back(ToDevice(dv[c]));
      k_unit_gpu.push_back(ToDevice(k_unit[c])), k_rstd_gpu.push_back(ToDeviceF32(k_rstd[c]));
    }
    ASSERT_TRUE(JoinProjections({}, args).ok());
    args.config = OnGpu(config), args.dq = dq_gpu;
    if (config.has_gate()) args.dq_mean = mean_gpu;
    args.q_unit = q_unit_gpu, args.q_rstd = q_rstd_gpu;
    args.norm_weights = {q_weight_gpu, k_weight_gpu};
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      args.dk[c] = dk_gpu[c], args.dv[c] = dv_gpu[c];
      args.k_unit[c] = k_unit_gpu[c], args.k_rstd[c] = k_rstd_gpu[c];
    }
    ExpectOnGpu({{"wide", wide, DType::kBf16, 4e-3},
                 {"dq_weight", dq_weight, DType::kF32, 1e-4, 1e-5, sums},
                 {"dk_weight", dk_weight, DType::kF32, 1e-4, 1e-5, sums}},
                [&](const Tensors& t) {
                  args.wide = t[0], args.dq_weight = t[1], args.dk_weight = t[2];
                  return JoinProjections(Gpu::Get().exec(), args);
                });
  }
}

}  // namespace
}  // namespace nsa::testing
