// Weights of normalized heads (qk_norm_weights): splitting projections and joining their gradients
// against the formula in fp64 and its central differences.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/nsa/layer/projections.h"
#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

using Values = std::vector<float>;
using BranchValues = std::array<Values, kBranches>;

NsaLayerConfig ConfigOf(int mask) {
  NsaLayerConfig config{.shape = {2, 19, 6, 2, 16, 32, 8, 4, 8, 3, 5}};
  for (int c = 0; c < kBranches; ++c) config.branches[c] = (mask >> c & 1) != 0;
  config.qk_norm = config.qk_norm_weights = true;
  if (mask % 2 == 1) {
    config.norm_eps = 0.25f;
    config.rope_scaling = {
        .kind = RopeScaling::Kind::kLlama3, .factor = 4, .original = 32, .low = 1, .high = 4};
  }
  return config;
}

int64_t Rows(const NsaShape& s) { return int64_t{1} * s.batch * s.seq_len; }

// Weights around 1, of both signs.
Values Weights(int64_t width, uint32_t seed) {
  Values weights = Random(width, seed);
  for (float& weight : weights) weight += 0.5f;
  return weights;
}

// Everything that goes into splitting and comes out of it, and the gradients that go into joining.
struct Case {
  explicit Case(const NsaLayerConfig& layer)
      : config(layer),
        wide(Random(Rows(layer.shape) * ProjectionWidth(layer), 1)),
        q_weight(Weights(layer.shape.d_k, 2)),
        k_weight(Weights(layer.shape.d_k, 3)),
        dq(Random(layer.shape.q_size(), 4)),
        mean(Random(layer.shape.k_size(), 5)) {
    const NsaShape& s = config.shape;
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      dk[c] = Random(s.k_size(), 10 + c), dv[c] = Random(s.v_size(), 20 + c);
      k[c] = k_unit[c] = Poisoned(s.k_size()), v[c] = Poisoned(s.v_size());
      k_rstd[c] = Poisoned(s.k_size() / s.d_k);
    }
  }

  template <class T>
  std::array<T, kBranches> Spans(BranchValues& values) const {
    std::array<T, kBranches> out;
    for (int c = 0; c < kBranches; ++c) {
      if (config.branches[c]) out[c] = Span(values[c]);
    }
    return out;
  }

  SplitProjectionsArgs Split() {
    return {.config = config,
            .wide = Span(std::as_const(wide)),
            .q_rotated = Span(q_rotated),
            .k = Spans<Tensor>(k),
            .v = Spans<Tensor>(v),
            .q_rstd = Span(q_rstd),
            .k_rstd = Spans<Tensor>(k_rstd),
            .norm_weights = {Span(std::as_const(q_weight)), Span(std::as_const(k_weight))},
            .q_unit = Span(q_unit),
            .k_unit = Spans<Tensor>(k_unit)};
  }
  JoinProjectionsArgs Join() {
    return {.config = config,
            .dq = Span(dq_given),
            .dq_mean = config.has_gate() ? ConstTensor(Span(std::as_const(mean))) : ConstTensor(),
            .dk = Spans<Tensor>(dk_given),
            .dv = Spans<ConstTensor>(dv),
            .wide = Span(joined),
            .q_rstd = Span(std::as_const(q_rstd)),
            .k_rstd = Spans<ConstTensor>(k_rstd),
            .norm_weights = {Span(std::as_const(q_weight)), Span(std::as_const(k_weight))},
            .q_unit = Span(std::as_const(q_unit)),
            .k_unit = Spans<ConstTensor>(k_unit),
            .dq_weight = Span(dq_weight),
            .dk_weight = Span(dk_weight)};
  }

  // Columns [begin, begin + width) of a wide matrix.
  oracle::Array Columns(const oracle::Array& matrix, int64_t begin, int64_t width) const {
    oracle::Array out;
    for (int64_t r = 0; r < Rows(config.shape); ++r) {
      const auto from = matrix.begin() + r * ProjectionWidth(config) + begin;
      out.insert(out.end(), from, from + width);
    }
    return out;
  }

  // Heads normalized, multiplied and rotated.
  oracle::Array Turned(oracle::Array heads, int64_t count, const oracle::Array& weight) const {
    const NsaShape& s = config.shape;
    heads = oracle::Normalized(heads, s.d_k, double{config.norm_eps});
    for (size_t i = 0; i < heads.size(); ++i) heads[i] *= weight[i % s.d_k];
    return oracle::Rope(heads, s.seq_len, count, s.d_k, config.rope_base, config.rope_scale,
                        config.rope_scaling);
  }

  // What SplitProjections computes, in fp64, times the gradients that go into joining.
  double Loss(const oracle::Array& x, const oracle::Array& wq, const oracle::Array& wk) const {
    const NsaShape& s = config.shape;
    const int64_t q_width = int64_t{s.n_heads} * s.d_k, k_width = int64_t{s.n_kv_groups} * s.d_k,
                  v_width = int64_t{s.n_kv_groups} * s.d_v;
    const oracle::Array q = Columns(x, 0, q_width);
    double loss = oracle::Dot(Turned(q, s.n_heads, wq), Double(dq));
    for (size_t i = 0; config.has_gate() && i < q.size(); ++i) {
      const size_t group = i / (s.heads_per_group() * s.d_k);
      loss += q[i] * mean[group * s.d_k + i % s.d_k] / s.heads_per_group();
    }
    int64_t at = q_width;
    for (const Branch branch : kProjectionOrder) {
      if (!config.has(branch)) continue;
      loss += oracle::Dot(Turned(Columns(x, at, k_width), s.n_kv_groups, wk), Double(dk[branch]));
      loss += oracle::Dot(Columns(x, at + k_width, v_width), Double(dv[branch]));
      at += k_width + v_width;
    }
    return loss;
  }

  const NsaLayerConfig config;
  Values wide, q_weight, k_weight;
  Values dq, mean;
  BranchValues dk, dv;
  Values dq_given = dq;  // changed by joining
  BranchValues dk_given;
  Values q_rotated = Poisoned(config.shape.q_size()), q_unit = q_rotated;
  Values q_rstd = Poisoned(config.shape.q_size() / config.shape.d_k);
  BranchValues k, v, k_rstd, k_unit;
  Values joined = Poisoned(static_cast<int64_t>(wide.size()));
  Values dq_weight = Values(config.shape.d_k, 0.5f), dk_weight = dq_weight;
};

TEST(HeadWeights, MultiplyNormalizedHeadsBeforeTheyAreRotated) {
  for (int mask = 1; mask < 8; ++mask) {
    Case run(ConfigOf(mask));
    ASSERT_OK(SplitProjections({}, run.Split()));
    const NsaShape& s = run.config.shape;
    const oracle::Array wide = Double(run.wide);
    const int64_t q_width = int64_t{s.n_heads} * s.d_k;
    const oracle::Array want =
        run.Turned(run.Columns(wide, 0, q_width), s.n_heads, Double(run.q_weight));
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(run.q_rotated[i], want[i], 1e-5);
    int64_t at = q_width;
    for (const Branch branch : kProjectionOrder) {
      if (!run.config.has(branch)) continue;
      const int64_t width = int64_t{s.n_kv_groups} * s.d_k;
      const oracle::Array keys =
          run.Turned(run.Columns(wide, at, width), s.n_kv_groups, Double(run.k_weight));
      for (size_t i = 0; i < keys.size(); ++i) ASSERT_NEAR(run.k[branch][i], keys[i], 1e-5);
      at += width + int64_t{s.n_kv_groups} * s.d_v;
    }
  }
}

TEST(HeadWeights, JoiningEqualsCentralDifferencesOfSplitting) {
  for (int mask = 1; mask < 8; ++mask) {
    Case run(ConfigOf(mask));
    run.dk_given = run.dk;
    ASSERT_OK(SplitProjections({}, run.Split()));
    ASSERT_OK(JoinProjections({}, run.Join()));
    for (float& value : run.dq_weight) value -= 0.5f;  // was added to
    for (float& value : run.dk_weight) value -= 0.5f;
    const std::array<oracle::Array, 3> at = {Double(run.wide), Double(run.q_weight),
                                             Double(run.k_weight)};
    const std::array<const Values*, 3> gradients = {&run.joined, &run.dq_weight, &run.dk_weight};
    for (size_t which = 0; which < at.size(); ++which) {
      for (uint32_t seed = 100; seed < 104; ++seed) {
        const oracle::Array direction =
            Double(Random(static_cast<int64_t>(at[which].size()), seed));
        const auto loss = [&](double step) {
          std::array<oracle::Array, 3> moved = at;
          for (size_t i = 0; i < direction.size(); ++i) moved[which][i] += step * direction[i];
          return run.Loss(moved[0], moved[1], moved[2]);
        };
        const double want = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        // Some 10,000 products of numbers up to 4 with a few roundings each: a random walk.
        EXPECT_NEAR(oracle::Dot(Double(*gradients[which]), direction), want,
                    1e-4 + 100 * 4 * 20 * kUnit)
            << which;
      }
    }
  }
}

TEST(HeadWeights, AreRefusedWithoutNormalizedHeadsAndWithOtherSizes) {
  Case run(ConfigOf(7));
  SplitProjectionsArgs args = run.Split();
  args.norm_weights.k = {};
  EXPECT_EQ(SplitProjections({}, args).code(), absl::StatusCode::kInvalidArgument);
  args = run.Split();
  args.config.qk_norm = false;
  EXPECT_EQ(SplitProjections({}, args).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nsa::testing
