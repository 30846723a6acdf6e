// The model on two and on four ranks that share its sequences: the same losses and gradients as on
// one, to within the order of sums.
#include <cblas.h>
#include <gmock/gmock.h>
#include <omp.h>

#include "common/estimate/memory/memory.h"
#include "tests/worker/train/model/context/local_ranks.h"

namespace nsa::train {
namespace {

using ::testing::HasSubstr;

struct ContextVariant {
  const char* name;
  std::function<void(v1::JobSpec*)> change;
  bool documents = false;
  std::optional<Recompute> recompute = {};
};

v1::JobSpec ContextJob() {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_n_heads(8);
  spec.mutable_model()->set_n_kv_groups(4);
  spec.mutable_model()->set_n_layers(3);
  spec.mutable_train()->set_seq_len(40);
  spec.mutable_train()->set_batch_size(3);
  return spec;
}

const ContextVariant kContextVariants[] = {
    {"mlp_sigmoid", [](v1::JobSpec*) {}},
    {"avg_softmax",
     [](v1::JobSpec* spec) {
       spec->mutable_nsa()->set_phi(v1::PHI_AVG);
       spec->mutable_nsa()->set_gate(v1::GATE_SOFTMAX);
     }},
    {"qkv_bias", [](v1::JobSpec* spec) { spec->mutable_model()->set_qkv_bias(true); }},
    {"qk_norm_weights",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_qk_norm(true);
       spec->mutable_model()->set_qk_norm_weights(true);
     }},
    {"all_of_other_families", UseAllOfOtherFamilies},
    {"all_of_other_families_recomputed", UseAllOfOtherFamilies, true, Recompute::kBlock},
    {"qk_norm", [](v1::JobSpec* spec) { spec->mutable_model()->set_qk_norm(true); }},
    {"layers_in_turn",
     [](v1::JobSpec* spec) {
       SetLayers(spec, {"win", "cmp+sel", "sel"});
     }},
    {"narrow_values", [](v1::JobSpec* spec) { spec->mutable_model()->set_d_v(64); }},
    {"widths_of_the_paper",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_d_k(192);
       spec->mutable_model()->set_d_v(128);
       spec->mutable_model()->set_qk_norm(true);
     }},
    {"documents", [](v1::JobSpec*) {}, true},
    {"norms_recomputed", [](v1::JobSpec*) {}, false, Recompute::kNorms},
    {"mlp_recomputed", [](v1::JobSpec*) {}, false, Recompute::kMlp},
    {"block_recomputed", [](v1::JobSpec*) {}, true, Recompute::kBlock},
    {"block_recomputed_in_turn",
     [](v1::JobSpec* spec) {
       SetLayers(spec, {"win", "cmp+sel"});
     },
     false, Recompute::kBlock},
};

class ContextVariants : public ::testing::TestWithParam<ContextVariant> {
 protected:
  void SetUp() override {
    omp_set_num_threads(1);
    openblas_set_num_threads(1);
  }
  static ContextCase Case() {
    v1::JobSpec spec = ContextJob();
    GetParam().change(&spec);
    return {.spec = spec, .recompute = GetParam().recompute, .documents = GetParam().documents};
  }
};

TEST_P(ContextVariants, LossesAndGradientsAreThoseOfOneRank) {
  const ContextBench bench(Case());
  const RankOutcome one = bench.Run(1)[0];
  for (const int32_t n : {2, 4}) {
    SCOPED_TRACE(n);
    const std::vector<RankOutcome> ranks = bench.Run(n);
    const v1::JobSpec& spec = Case().spec;
    const int32_t seq_len = spec.train().seq_len(), part = seq_len / n;
    double mean = 0;
    for (int32_t rank = 0; rank < n; ++rank) {
      mean += ranks[rank].loss / n;
      for (int64_t i = 0; i < int64_t{spec.train().batch_size()} * part; ++i) {
        const int64_t whole = i / part * seq_len + rank * part + i % part;
        ASSERT_NEAR(ranks[rank].token_losses[i], one.token_losses[whole], 2e-5) << rank << " " << i;
      }
    }
    EXPECT_NEAR(mean, one.loss, 1e-5);
    ExpectSameGradients(bench.layout(), SumOfGradients(ranks), one.gradients, 2e-5);
    // No rank alone has them.
    EXPECT_NE(ranks[0].gradients, one.gradients);
  }
}

TEST_P(ContextVariants, TwoRunsHaveTheSameBits) {
  const ContextBench bench(Case());
  const std::vector<RankOutcome> first = bench.Run(2), second = bench.Run(2);
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(first[rank].gradients, second[rank].gradients);
    EXPECT_EQ(first[rank].loss, second[rank].loss);
  }
}

// Every rank counts its heads over all tokens: what is counted adds up to one rank's counts.
TEST_P(ContextVariants, StatisticsOfAllRanksAddUpToThoseOfOne) {
  const ContextBench bench(Case());
  const std::vector<v1::LayerStats> one = bench.Run(1)[0].stats;
  const std::vector<RankOutcome> ranks = bench.Run(2);
  for (size_t layer = 0; layer < one.size(); ++layer) {
    const v1::LayerStats &a = ranks[0].stats[layer], &b = ranks[1].stats[layer];
    for (int branch = 0; branch < kBranches; ++branch) {
      EXPECT_EQ(a.keys_read(branch), a.keys_expected(branch));
      EXPECT_EQ(a.keys_read(branch) + b.keys_read(branch), one[layer].keys_read(branch));
    }
    EXPECT_EQ(a.selection().rows() + b.selection().rows(), one[layer].selection().rows());
    EXPECT_NEAR((a.selection().keys_mean() + b.selection().keys_mean()) / 2,
                one[layer].selection().keys_mean(), 1e-9);
    ASSERT_EQ(a.has_gate(), one[layer].has_gate());
    const auto mean = [&](auto value) { return (value(a.gate()) + value(b.gate())) / 2; };
    EXPECT_NEAR(mean([](const v1::GateStats& g) { return g.entropy_mean(); }),
                one[layer].gate().entropy_mean(), 1e-5);
    for (int branch = 0; branch < one[layer].gate().branch_share_size(); ++branch) {
      EXPECT_NEAR(mean([&](const v1::GateStats& g) { return g.branch_share(branch); }),
                  one[layer].gate().branch_share(branch), 1e-5);
    }
    ASSERT_EQ(a.has_audit(), one[layer].has_audit());
    const v1::AttentionAudit& audit = one[layer].audit();
    EXPECT_EQ(a.audit().queries() + b.audit().queries(), audit.queries());
    if (audit.has_selected_mass()) {
      EXPECT_NEAR((a.audit().selected_mass() + b.audit().selected_mass()) / 2,
                  audit.selected_mass(), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ContextVariants, ::testing::ValuesIn(kContextVariants),
                         [](const auto& test) { return test.param.name; });

TEST(Context, EachRankHoldsLessThanOneRankDoes) {
  const v1::JobSpec spec = ContextJob();
  const ParameterLayout layout(spec);
  const Arena weights(&layout);
  Meeting meeting(4);
  LocalRank group(&meeting, 0);
  const auto bytes = [&](ContextGroup* ranks) {
    const auto model = Model::Create(
        spec, {.batch = 3, .seq_len = 40, .training = true, .group = ranks}, &weights);
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->activation_bytes();
  };
  EXPECT_LT(bytes(&group), bytes(nullptr) / 3);
}

TEST(Context, HeadsThatCannotBeDividedAreRefused) {
  const v1::JobSpec spec = ContextJob();
  const ParameterLayout layout(spec);
  const Arena weights(&layout);
  Meeting meeting(3);
  LocalRank group(&meeting, 0);
  const auto model = Model::Create(spec, {.batch = 1, .seq_len = 39, .group = &group}, &weights);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("resources.context_parallel: 3"));
}

TEST(Context, TheNextTokenIsForOneRank) {
  const v1::JobSpec spec = ContextJob();
  const ParameterLayout layout(spec);
  const Arena weights(&layout);
  Meeting meeting(2);
  LocalRank group(&meeting, 0);
  const auto model = Model::Create(spec, {.batch = 1, .seq_len = 40, .group = &group}, &weights);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int32_t> tokens(20, 1);
  std::vector<float> logits(spec.model().vocab());
  EXPECT_EQ((*model)->NextLogits({}, tokens, 3, logits).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nsa::train
