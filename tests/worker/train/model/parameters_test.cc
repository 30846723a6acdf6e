#include "worker/train/model/parameters.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <set>
#include <string>

#include "common/estimate/estimate.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/block/block.h"

namespace nsa::train {
namespace {

// The Python system's model.
v1::JobSpec M7c() {
  v1::JobSpec spec;
  spec.mutable_nsa()->set_phi(v1::PHI_AVG);
  spec.mutable_nsa()->set_gate(v1::GATE_SOFTMAX);
  ApplyDefaults(&spec);
  return spec;
}

const ParameterInfo& Tensor(const ParameterLayout& layout, const char* name) {
  const auto found = layout.Find(name);
  EXPECT_TRUE(found.ok()) << found.status();
  return **found;
}

struct Moments {
  double mean = 0;
  double deviation = 0;
  double largest = 0;
};

Moments MomentsOf(std::span<const float> values) {
  Moments moments;
  for (const float value : values) moments.mean += value / static_cast<double>(values.size());
  for (const float value : values) {
    moments.deviation += std::pow(value - moments.mean, 2) / static_cast<double>(values.size());
    moments.largest = std::max(moments.largest, std::abs(double{value}));
  }
  moments.deviation = std::sqrt(moments.deviation);
  return moments;
}

TEST(ParameterLayout, HasTheNamesShapesAndOrderOfThePythonSystem) {
  const ParameterLayout layout(M7c());
  ASSERT_EQ(layout.tensors().size(), 195u);
  EXPECT_EQ(layout.tensors().front().name, "embed.weight");
  EXPECT_EQ(layout.tensors()[2].name, "blocks.0.attn.W_Q.weight");
  EXPECT_EQ(layout.tensors()[16].name, "blocks.0.mlp.fc2.weight");
  EXPECT_EQ(layout.tensors()[192].name, "blocks.11.mlp.fc2.weight");
  EXPECT_EQ(layout.tensors().back().name, "lm_head.weight");
  EXPECT_EQ(Tensor(layout, "blocks.3.attn.W_V_cmp.weight").shape, (std::vector<int64_t>{128, 768}));
  EXPECT_EQ(Tensor(layout, "blocks.3.attn.gate.fc2.weight").shape, (std::vector<int64_t>{3, 32}));
}

TEST(ParameterLayout, HasAsManyParametersAsTheEstimate) {
  EXPECT_EQ(ParameterLayout(M7c()).count(), 78295332);
  for (const auto phi : {v1::PHI_AVG, v1::PHI_MLP}) {
    for (const bool window_alone : {false, true}) {
      v1::JobSpec spec = TinyJob();
      spec.mutable_nsa()->set_phi(phi);
      if (window_alone) {
        spec.mutable_nsa()->clear_branches();
        spec.mutable_nsa()->add_branches(v1::BRANCH_WIN);
      }
      EXPECT_EQ(ParameterLayout(spec).count(), ParameterCount(spec)) << phi << window_alone;
    }
  }
}

TEST(ParameterLayout, HasInEveryLayerOnlyTheTensorsOfItsBranches) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_nsa()->set_phi(v1::PHI_MLP);
  SetLayers(&spec, {"win", "cmp+sel"});
  spec.mutable_model()->set_n_layers(3);
  const ParameterLayout layout(spec);
  EXPECT_EQ(layout.count(), ParameterCount(spec));
  const std::set<std::string> of_window = {"W_K_win.weight", "W_V_win.weight"};
  for (const ParameterInfo& tensor : layout.tensors()) {
    const size_t part = tensor.name.find(".attn.");
    if (part == std::string::npos) continue;
    const std::string name = tensor.name.substr(part + 6);
    if (name == "W_Q.weight" || name == "out.weight") continue;
    const bool window_layer = !tensor.name.starts_with("blocks.1.");
    EXPECT_EQ(of_window.contains(name), window_layer) << tensor.name;
  }
  EXPECT_EQ(Tensor(layout, "blocks.1.attn.gate.fc2.weight").shape, (std::vector<int64_t>{2, 8}));
  EXPECT_TRUE(layout.Find("blocks.1.attn.phi_v.position").ok());
  EXPECT_TRUE(layout.Find("blocks.2.attn.W_K_win.weight").ok());
}

TEST(ParameterLayout, BeginsTensorsAtMultiplesOf16AndDecaysMatricesOnly) {
  int64_t next = 0;
  const ParameterLayout layout(TinyJob());
  for (const ParameterInfo& tensor : layout.tensors()) {
    EXPECT_EQ(tensor.offset, (next + 15) / 16 * 16) << tensor.name;
    EXPECT_EQ(tensor.decay, tensor.shape.size() == 2) << tensor.name;
    next = tensor.offset + tensor.size;
  }
  EXPECT_EQ((next + 15) / 16 * 16, layout.size());
}

// One matrix product computes q and all keys and values, so their weights must form one matrix.
TEST(ParameterLayout, LeavesNoGapBetweenProjections) {
  for (const int width : {16, 32}) {
    v1::JobSpec spec = TinyJob();
    spec.mutable_model()->set_dim(9);  // an odd one
    spec.mutable_model()->set_d_k(width);
    const ParameterLayout layout(spec);
    int64_t next = (*layout.Find("blocks.1.attn.W_Q.weight"))->offset;
    for (const ParameterInfo& tensor : layout.tensors()) {
      if (!tensor.name.starts_with("blocks.1.attn.W_")) continue;
      EXPECT_EQ(tensor.offset, next) << tensor.name;
      next += tensor.size;
    }
    EXPECT_EQ((*layout.Find("blocks.1.attn.out.weight"))->offset, next);
  }
}

TEST(ParameterLayout, ItsTailFillsTheHeadUpTo128Rows) {
  v1::JobSpec spec = M7c();
  EXPECT_EQ(ParameterLayout(spec).tail(), 0) << "a vocabulary of 256";
  spec.mutable_model()->set_vocab(50257);
  const ParameterLayout layout(spec);
  const ParameterInfo& head = Tensor(layout, "lm_head.weight");
  EXPECT_EQ(&head, &layout.tensors().back());
  EXPECT_EQ(head.offset + 50304 * head.shape[1], layout.size() + layout.tail());
}

// On a GPU the head reads 128 rows at a time: those behind the vocabulary are a gap, which is 0.
TEST(ParameterLayout, ATiedEmbeddingIsTheHeadAndHasAGapUpTo128Rows) {
  v1::JobSpec spec = M7c();
  spec.mutable_model()->set_vocab(50257);
  const int64_t untied = ParameterLayout(spec).count();
  spec.mutable_model()->set_tie_embeddings(true);
  const ParameterLayout layout(spec);
  EXPECT_FALSE(layout.Find("lm_head.weight").ok());
  EXPECT_EQ(layout.count(), untied - int64_t{50257} * spec.model().dim());
  EXPECT_EQ(layout.tensors()[1].offset, int64_t{50304} * spec.model().dim());
  EXPECT_EQ(layout.tail(), 0);
  const ModelPlaces places = ModelPlaces::Of(layout, spec.model().n_layers());
  EXPECT_TRUE(places.tied());
  EXPECT_EQ(places.PartBegins().front(), places.norm_f.offset);
  EXPECT_EQ(places.PartBegins().back(), 0);
}

TEST(Initialize, DrawsEachTensorFromItsDistribution) {
  v1::JobSpec spec = M7c();
  spec.mutable_model()->set_n_layers(2);
  const ParameterLayout layout(spec);
  Arena parameters(&layout);
  Initialize(1337, &parameters);
  const auto moments = [&](const char* name) {
    return MomentsOf(parameters.of(Tensor(layout, name)));
  };
  // Standard errors: σ/√n of the mean and σ/√(2n) of the deviation; five of them.
  const Moments embed = moments("embed.weight");  // n = 196,608
  EXPECT_NEAR(embed.mean, 0.0, 5 * 0.02 / std::sqrt(196608.0));
  EXPECT_NEAR(embed.deviation, 0.02, 5 * 0.02 / std::sqrt(2 * 196608.0));
  const Moments out = moments("blocks.1.mlp.fc2.weight");  // n = 2,359,296; 0.02/√4
  EXPECT_NEAR(out.deviation, 0.01, 5 * 0.01 / std::sqrt(2 * 2359296.0));
  const Moments gate = moments("blocks.0.attn.gate.fc2.weight");
  EXPECT_LE(gate.largest, 0.1 * std::sqrt(6.0 / 35));
  EXPECT_GT(gate.largest, 0.09 * std::sqrt(6.0 / 35));
  EXPECT_EQ(moments("blocks.0.attn.gate.fc2.bias").largest, 0.0);
  EXPECT_EQ(moments("norm_f.weight").largest, 1.0);
  EXPECT_NEAR(moments("norm_f.weight").mean, 1.0, 1e-12);
}

TEST(Initialize, GivesASliceWhatAllHaveThere) {
  const ParameterLayout layout(TinyJob());
  Arena all(&layout);
  Initialize(1, &all);
  for (const Slice& slice :
       {Slice{0, 16}, Slice{64, 1264}, Slice{336, layout.size()}, Slice{96, 96}, Slice{5, 391}}) {
    Arena part(&layout, slice);
    Initialize(1, &part);
    EXPECT_TRUE(std::ranges::equal(part.flat(), all.of(slice))) << slice.begin;
  }
}

TEST(Initialize, DependsOnTheSeedAndOnNothingElse) {
  const ParameterLayout layout(TinyJob());
  Arena a(&layout), b(&layout), c(&layout);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  Initialize(1, &a);
  omp_set_num_threads(3);
  Initialize(1, &b);
  Initialize(2, &c);
  omp_set_num_threads(threads);
  EXPECT_TRUE(std::equal(a.flat().begin(), a.flat().end(), b.flat().begin()));
  EXPECT_FALSE(std::equal(a.flat().begin(), a.flat().end(), c.flat().begin()));

  v1::JobSpec deeper = TinyJob();
  deeper.mutable_nsa()->set_phi(v1::PHI_MLP);
  const ParameterLayout other(deeper);
  Arena d(&other);
  Initialize(1, &d);
  const auto want = a.of(Tensor(layout, "lm_head.weight"));
  const auto got = d.of(Tensor(other, "lm_head.weight"));
  EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin()));
}

}  // namespace
}  // namespace nsa::train
