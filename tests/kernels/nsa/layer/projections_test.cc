// Splitting projections and joining their gradients: on the CPU this equals copying columns and
// rotating one after the other, and the layer gives the same whether it rotates itself or not.
#include "kernels/nsa/layer/projections.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/nn/rope.h"
#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

using ::testing::StartsWith;

using Values = std::vector<float>;
using BranchValues = std::array<Values, kBranches>;

template <class T, class V>
std::array<T, kBranches> Spans(const NsaLayerConfig& config, V& values) {
  std::array<T, kBranches> out;
  for (int c = 0; c < kBranches; ++c) {
    if (config.branches[c]) out[c] = Span(values[c]);
  }
  return out;
}

BranchValues PerBranch(const NsaLayerConfig& config, int64_t size) {
  BranchValues out;
  for (int c = 0; c < kBranches; ++c) {
    if (config.branches[c]) out[c] = Poisoned(size);
  }
  return out;
}

struct Split {
  Values q, q_rotated;
  BranchValues k, v;
  Values q_rstd;  // with qk_norm
  BranchValues k_rstd;
};
Split SplitOf(const NsaLayerConfig& config, const Values& wide) {
  const NsaShape& s = config.shape;
  Split out{Poisoned(s.q_size()),          Poisoned(s.q_size()),
            PerBranch(config, s.k_size()), PerBranch(config, s.v_size()),
            Poisoned(s.q_size() / s.d_k),  PerBranch(config, s.k_size() / s.d_k)};
  EXPECT_OK(SplitProjections({}, {.config = config,
                                  .wide = Span(wide),
                                  .q = Span(out.q),
                                  .q_rotated = Span(out.q_rotated),
                                  .k = Spans<Tensor>(config, out.k),
                                  .v = Spans<Tensor>(config, out.v),
                                  .q_rstd = Span(out.q_rstd),
                                  .k_rstd = Spans<Tensor>(config, out.k_rstd)}));
  return out;
}

// Forward with qk_norm normalized too.
Values Rotated(const NsaLayerConfig& config, int32_t heads, const Values& x) {
  Values y = Poisoned(static_cast<int64_t>(x.size()));
  EXPECT_OK(Rope({}, {.batch = config.shape.batch,
                      .seq_len = config.shape.seq_len,
                      .heads = heads,
                      .head_dim = config.shape.d_k,
                      .base = config.rope_base,
                      .scale = config.rope_scale,
                      .scaling = config.rope_scaling,
                      .x = Span(std::as_const(x)),
                      .y = Span(y),
                      .eps = config.norm_eps,
                      .normalize = config.qk_norm}));
  return y;
}

int64_t Rows(const NsaShape& s) { return int64_t{1} * s.batch * s.seq_len; }

// Columns [begin, begin + width) of `wide`.
Values Columns(const Values& wide, int64_t rows, int64_t begin, int64_t width) {
  const auto all = static_cast<int64_t>(wide.size()) / rows;
  Values out;
  for (int64_t r = 0; r < rows; ++r) {
    const auto from = wide.begin() + r * all + begin;
    out.insert(out.end(), from, from + width);
  }
  return out;
}

std::vector<NsaLayerConfig> Configs() {
  std::vector<NsaLayerConfig> out;
  for (int mask = 1; mask < 8; ++mask) {
    NsaLayerConfig config{.shape = {2, 19, 6, 2, 16, 32, 8, 4, 8, 3, 5}};
    for (int c = 0; c < kBranches; ++c) config.branches[c] = (mask >> c & 1) != 0;
    out.push_back(config);
  }
  out.back().rope_base = 500, out.back().rope_scale = 2;
  out.back().norm_eps = 0.25f;
  out.back().rope_scaling = {
      .kind = RopeScaling::Kind::kLlama3, .factor = 4, .original = 32, .low = 1, .high = 4};
  out.push_back(out[5]);
  out.back().rope_scale = kNoRotation;
  for (const size_t i : {size_t{1}, out.size() - 2, out.size() - 1}) {
    out.push_back(out[i]);
    out.back().qk_norm = true;
  }
  return out;
}

TEST(Projections, QAsProjectedIsOptional) {
  for (const NsaLayerConfig& config : Configs()) {
    const Values wide = Random(Rows(config.shape) * ProjectionWidth(config), 1);
    Split split = SplitOf(config, wide);
    Values q_rotated = Poisoned(config.shape.q_size());
    EXPECT_OK(SplitProjections({}, {.config = config,
                                    .wide = Span(wide),
                                    .q_rotated = Span(q_rotated),
                                    .k = Spans<Tensor>(config, split.k),
                                    .v = Spans<Tensor>(config, split.v),
                                    .q_rstd = Span(split.q_rstd),
                                    .k_rstd = Spans<Tensor>(config, split.k_rstd)}));
    EXPECT_EQ(q_rotated, split.q_rotated);
  }
}

TEST(Projections, AreHandedOutInTheirOrderAndRotated) {
  for (const NsaLayerConfig& config : Configs()) {
    const NsaShape& s = config.shape;
    const int64_t rows = Rows(s), width = ProjectionWidth(config);
    const Values wide = Random(rows * width, 1);
    const Split split = SplitOf(config, wide);
    int64_t at = int64_t{s.n_heads} * s.d_k;
    EXPECT_EQ(split.q, Columns(wide, rows, 0, at));
    EXPECT_EQ(split.q_rotated, Rotated(config, s.n_heads, split.q));
    EXPECT_EQ(split.q_rotated == split.q, config.rope_scale == kNoRotation && !config.qk_norm);
    for (const Branch branch : {kSel, kWin, kCmp}) {
      if (!config.has(branch)) continue;
      const int64_t k = int64_t{s.n_kv_groups} * s.d_k, v = int64_t{s.n_kv_groups} * s.d_v;
      EXPECT_EQ(split.k[branch], Rotated(config, s.n_kv_groups, Columns(wide, rows, at, k)));
      EXPECT_EQ(split.v[branch], Columns(wide, rows, at + k, v));
      at += k + v;
    }
    EXPECT_EQ(at, width);
  }
}

// <join(d), wide> = <d, split(wide)>: joining is the gradient of splitting. Both sides are sums of
// a few thousand products below 1 with a few roundings each.
TEST(Projections, JoiningIsTheGradientOfSplitting) {
  for (const NsaLayerConfig& config : Configs()) {
    if (config.qk_norm) continue;  // not linear: the next test
    const NsaShape& s = config.shape;
    const Values wide = Random(Rows(s) * ProjectionWidth(config), 1);
    const Split split = SplitOf(config, wide);
    Values dq = Random(s.q_size(), 2), mean = Random(s.k_size(), 3), joined = wide;
    BranchValues dk, dv;
    double want = 0;
    const auto add = [&](const Values& a, const Values& b) {
      for (size_t i = 0; i < a.size(); ++i) want += double{a[i]} * b[i];
    };
    add(dq, split.q_rotated);
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      dk[c] = Random(s.k_size(), 10 + c), dv[c] = Random(s.v_size(), 20 + c);
      add(dk[c], split.k[c]);
      add(dv[c], split.v[c]);
    }
    for (size_t i = 0; config.has_gate() && i < split.q.size(); ++i) {
      const size_t row = i / (s.heads_per_group() * s.d_k);
      want += double{mean[row * s.d_k + i % s.d_k]} / s.heads_per_group() * split.q[i];
    }
    ASSERT_OK(
        JoinProjections({}, {.config = config,
                             .dq = Span(dq),
                             .dq_mean = config.has_gate() ? ConstTensor(Span(mean)) : ConstTensor(),
                             .dk = Spans<Tensor>(config, dk),
                             .dv = Spans<ConstTensor>(config, std::as_const(dv)),
                             .wide = Span(joined)}));
    double got = 0;
    for (size_t i = 0; i < wide.size(); ++i) got += double{joined[i]} * wide[i];
    EXPECT_NEAR(got, want, 1e-4);
  }
}

// What SplitProjections computes of `wide`, in fp64, times the gradients that go into joining.
struct JoinCase {
  Values dq, mean;
  BranchValues dk, dv;

  double Loss(const NsaLayerConfig& config, const oracle::Array& wide) const {
    const NsaShape& s = config.shape;
    const auto all = static_cast<int64_t>(wide.size()) / Rows(s);
    double loss = 0;
    int64_t begin = 0;
    const auto add = [&](int64_t heads, int64_t head, const Values& gradient, bool rotated) {
      oracle::Array x;
      for (int64_t r = 0; r < Rows(s); ++r) {
        const auto from = wide.begin() + r * all + begin;
        x.insert(x.end(), from, from + heads * head);
      }
      if (rotated) {
        x = oracle::Rope(oracle::Normalized(x, head, double{config.norm_eps}), s.seq_len, heads,
                         head, config.rope_base, config.rope_scale, config.rope_scaling);
      }
      loss += oracle::Dot(x, Double(gradient));
    };
    add(s.n_heads, s.d_k, dq, true);
    if (config.has_gate()) {
      Values share(s.q_size());  // the gate reads q as projected
      for (size_t i = 0; i < share.size(); ++i) {
        const size_t group = i / (s.heads_per_group() * s.d_k);
        share[i] = mean[group * s.d_k + i % s.d_k] / static_cast<float>(s.heads_per_group());
      }
      add(s.n_heads, s.d_k, share, false);
    }
    begin = int64_t{s.n_heads} * s.d_k;
    for (const Branch branch : kProjectionOrder) {
      if (!config.has(branch)) continue;
      add(s.n_kv_groups, s.d_k, dk[branch], true);
      begin += int64_t{s.n_kv_groups} * s.d_k;
      add(s.n_kv_groups, s.d_v, dv[branch], false);
      begin += int64_t{s.n_kv_groups} * s.d_v;
    }
    return loss;
  }
};

TEST(Projections, WithQkNormJoiningEqualsCentralDifferencesOfSplitting) {
  for (const NsaLayerConfig& config : Configs()) {
    if (!config.qk_norm) continue;
    const NsaShape& s = config.shape;
    const Values wide = Random(Rows(s) * ProjectionWidth(config), 1);
    const Split split = SplitOf(config, wide);
    JoinCase join{Random(s.q_size(), 2), Random(s.k_size(), 3), {}, {}};
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      join.dk[c] = Random(s.k_size(), 10 + c), join.dv[c] = Random(s.v_size(), 20 + c);
    }
    Values dq = join.dq, joined = Poisoned(static_cast<int64_t>(wide.size()));
    BranchValues dk = join.dk;
    ASSERT_OK(JoinProjections(
        {}, {.config = config,
             .dq = Span(dq),
             .dq_mean = config.has_gate() ? ConstTensor(Span(join.mean)) : ConstTensor(),
             .dk = Spans<Tensor>(config, dk),
             .dv = Spans<ConstTensor>(config, std::as_const(join.dv)),
             .wide = Span(joined),
             .q_rotated = Span(split.q_rotated),
             .q_rstd = Span(split.q_rstd),
             .k_rotated = Spans<ConstTensor>(config, split.k),
             .k_rstd = Spans<ConstTensor>(config, split.k_rstd)}));
    for (uint32_t seed = 100; seed < 106; ++seed) {
      const oracle::Array direction = Double(Random(static_cast<int64_t>(wide.size()), seed));
      const auto at = [&](double step) {
        oracle::Array moved = Double(wide);
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
        return join.Loss(config, moved);
      };
      const double want = (at(1e-5) - at(-1e-5)) / 2e-5;
      // Some 10,000 products of numbers up to 4 with a few roundings each: a random walk.
      EXPECT_NEAR(oracle::Dot(Double(joined), direction), want, 1e-4 + 100 * 4 * 20 * kUnit);
    }
  }
}

// Forward and backward of a layer, from the projections to their gradient.
struct LayerRun {
  Values o, d_wide, grads;
};

// The keys of every branch as they are in `wide`, not rotated.
BranchValues KeysOf(const NsaLayerConfig& config, const Values& wide) {
  const NsaShape& s = config.shape;
  BranchValues keys;
  int64_t at = int64_t{s.n_heads} * s.d_k;
  for (const Branch branch : kProjectionOrder) {
    if (!config.has(branch)) continue;
    keys[branch] = Columns(wide, Rows(s), at, int64_t{s.n_kv_groups} * s.d_k);
    at += int64_t{s.n_kv_groups} * (s.d_k + s.d_v);
  }
  return keys;
}

// Puts rotated queries and keys where a layer that does not rotate expects them.
void Save(const Split& split, const NsaLayerSaved& at) {
  std::copy(split.q_rotated.begin(), split.q_rotated.end(), static_cast<float*>(at.q.data));
  std::copy_n(split.q_rstd.begin(), at.q_rstd.size, static_cast<float*>(at.q_rstd.data));
  for (int c = 0; c < kBranches; ++c) {
    std::copy(split.k[c].begin(), split.k[c].end(), static_cast<float*>(at.k[c].data));
    std::copy_n(split.k_rstd[c].begin(), at.k_rstd[c].size, static_cast<float*>(at.k_rstd[c].data));
  }
}

LayerRun RunLayer(const NsaLayerConfig& config, const Values& wide, bool layer_rotates) {
  const NsaShape& s = config.shape;
  Split split = SplitOf(config, wide);
  if (layer_rotates) split.k = KeysOf(config, wide);
  GateValues gate = RandomGate(s, config.n_branches(), 5);
  GateValues grads = RandomGate(s, config.n_branches(), 6);
  LayerRun out{Poisoned(s.o_size()), Poisoned(static_cast<int64_t>(wide.size())), {}};
  Values saved_memory = Poisoned(NsaLayerSavedBytes(config) / 4 + 1),
         work_memory = Poisoned(NsaLayerWorkspaceBytes(config) / 4 + 1);
  const Tensor saved = Bytes(saved_memory, NsaLayerSavedBytes(config)),
               work = Bytes(work_memory, NsaLayerWorkspaceBytes(config));
  if (!layer_rotates) Save(split, LayoutSaved(config, saved));
  NsaLayerArgs args{.config = config,
                    .rotated = !layer_rotates,
                    .q = layer_rotates ? Span(std::as_const(split.q)) : Span(wide),
                    .q_stride = layer_rotates ? 0 : ProjectionWidth(config),
                    .v = Spans<ConstTensor>(config, std::as_const(split.v)),
                    .saved = saved,
                    .workspace = work,
                    .o = Span(out.o)};
  if (layer_rotates) args.k = Spans<ConstTensor>(config, std::as_const(split.k));
  const Values d_o = Random(s.o_size(), 7);
  Values dq = Poisoned(s.q_size());
  BranchValues dk = PerBranch(config, s.k_size()), dv = PerBranch(config, s.v_size());
  NsaLayerBackwardArgs back{.config = config,
                            .v = args.v,
                            .o = Span(std::as_const(out.o)),
                            .saved = saved,
                            .workspace = work,
                            .d_o = Span(d_o),
                            .dq = Span(dq),
                            .dk = Spans<Tensor>(config, dk),
                            .dv = Spans<Tensor>(config, dv),
                            .rotated = !layer_rotates};
  if (config.has_gate()) {
    args.params.gate = back.params.gate = ParamsOf(gate);
    back.grads.gate = GradsOf(grads);
  }
  EXPECT_OK(NsaLayer({}, args));
  EXPECT_OK(NsaLayerBackward({}, back));
  JoinProjectionsArgs join{.config = config,
                           .dq = Span(dq),
                           .dq_mean = LayoutMeanGradient(config, work),
                           .dk = Spans<Tensor>(config, dk),
                           .dv = Spans<ConstTensor>(config, std::as_const(dv)),
                           .wide = Span(out.d_wide),
                           .q_rotated = Span(std::as_const(split.q_rotated)),
                           .q_rstd = Span(std::as_const(split.q_rstd)),
                           .k_rotated = Spans<ConstTensor>(config, std::as_const(split.k)),
                           .k_rstd = Spans<ConstTensor>(config, std::as_const(split.k_rstd))};
  Values mean(s.k_size(), 0.0f);
  if (layer_rotates) {  // the layer has rotated back and added the mean: rotate again, add nothing
    join.config.qk_norm = false;
    dq = Rotated(join.config, s.n_heads, dq);
    for (int c = 0; c < kBranches; ++c) {
      if (config.branches[c]) dk[c] = Rotated(join.config, s.n_kv_groups, dk[c]);
    }
    join.dq = Span(dq), join.dk = Spans<Tensor>(config, dk);
    if (config.has_gate()) join.dq_mean = Span(std::as_const(mean));
  }
  EXPECT_OK(JoinProjections({}, join));
  for (const Values* g : {&grads.fc1_w, &grads.fc1_b, &grads.fc2_w, &grads.fc2_b})
    out.grads.insert(out.grads.end(), g->begin(), g->end());
  return out;
}

// The comparison rotates forth and back, which adds two roundings of the rotated values.
TEST(Projections, TheLayerGivesTheSameWhoeverRotates) {
  for (const NsaLayerConfig& config : Configs()) {
    const Values wide = Random(Rows(config.shape) * ProjectionWidth(config), 1);
    const LayerRun by_layer = RunLayer(config, wide, true),
                   by_split = RunLayer(config, wide, false);
    EXPECT_EQ(by_layer.o, by_split.o);
    EXPECT_EQ(by_layer.grads, by_split.grads);
    double largest = 0;
    for (const float x : by_layer.d_wide) largest = std::max(largest, std::abs(double{x}));
    for (size_t i = 0; i < by_layer.d_wide.size(); ++i)
      ASSERT_NEAR(by_layer.d_wide[i], by_split.d_wide[i], 1e-6 * largest) << i;
  }
}

TEST(Projections, RefuseTensorsOfOtherSizes) {
  const NsaLayerConfig config{.shape = TinyShape()};
  const NsaShape& s = config.shape;
  Values wide(Rows(s) * ProjectionWidth(config)), q(s.q_size()), other(s.q_size()),
      mean(s.k_size());
  BranchValues k, v;
  for (int c = 0; c < kBranches; ++c) k[c].resize(s.k_size()), v[c].resize(s.v_size());
  const SplitProjectionsArgs split{.config = config,
                                   .wide = Span(std::as_const(wide)),
                                   .q = Span(q),
                                   .q_rotated = Span(other),
                                   .k = Spans<Tensor>(config, k),
                                   .v = Spans<Tensor>(config, v)};
  const JoinProjectionsArgs join{.config = config,
                                 .dq = Span(q),
                                 .dq_mean = Span(std::as_const(mean)),
                                 .dk = Spans<Tensor>(config, k),
                                 .dv = Spans<ConstTensor>(config, std::as_const(v)),
                                 .wide = Span(wide)};
  EXPECT_OK(SplitProjections({}, split));
  EXPECT_OK(JoinProjections({}, join));
  const auto refused = [](const char* name, auto run, auto args, auto spoil) {
    spoil(&args);
    EXPECT_THAT(run({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(std::string(name) + ": ")));
  };
  refused("wide", SplitProjections, split, [](auto* a) { a->wide.size -= 1; });
  refused("q", SplitProjections, split, [](auto* a) { a->q.size -= 1; });
  refused("q_rotated", SplitProjections, split, [](auto* a) { a->q_rotated.data = nullptr; });
  refused("k[1]", SplitProjections, split, [](auto* a) { a->k[1].size += 1; });
  refused("v[2]", SplitProjections, split, [](auto* a) { a->v[2].dtype = DType::kU8; });
  refused("rope_base", SplitProjections, split, [](auto* a) { a->config.rope_base = 1; });
  refused("dq", JoinProjections, join, [](auto* a) { a->dq.size -= 1; });
  refused("dq_mean", JoinProjections, join, [](auto* a) { a->dq_mean = {}; });
  refused("dk[0]", JoinProjections, join, [](auto* a) { a->dk[0].size += 1; });
  refused("dv[1]", JoinProjections, join, [](auto* a) { a->dv[1].data = nullptr; });
  refused("wide", JoinProjections, join, [](auto* a) { a->wide.size += 1; });
  refused("q_rstd", SplitProjections, split,
          [&](auto* a) { a->config.qk_norm = true, a->q_rstd = Span(q); });
  refused("q_rotated", JoinProjections, join, [](auto* a) { a->config.qk_norm = true; });
  // A branch that is absent has no tensors.
  refused("k[1]", SplitProjections, split, [&](auto* a) {
    a->config.branches[kSel] = false;
    a->wide.size = Rows(s) * ProjectionWidth(a->config);
  });
  refused("dk[1]", JoinProjections, join, [](auto* a) { a->config.branches[kSel] = false; });
}

}  // namespace
}  // namespace nsa::testing
