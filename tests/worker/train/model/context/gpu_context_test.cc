// Ranks that share sequences, as threads on one GPU: exchanges are copies here, everything else is
// as on several GPUs. Losses and gradients are those of one rank to within bf16's rounding.
#include <functional>

#include "common/estimate/memory/memory.h"
#include "tests/worker/train/model/context/local_ranks.h"

namespace nsa::train {
namespace {

// n_sel = S_sel, so that all blocks are selected: rounding could otherwise change the selection.
v1::JobSpec GpuContextJob() {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_dim(64);
  spec.mutable_model()->set_n_layers(3);
  spec.mutable_model()->set_n_heads(8);
  spec.mutable_model()->set_n_kv_groups(4);
  spec.mutable_model()->set_vocab(48);
  spec.mutable_nsa()->set_n_sel(6);
  spec.mutable_train()->set_seq_len(48);
  spec.mutable_train()->set_batch_size(3);
  return spec;
}

struct Variant {
  const char* name;
  std::function<void(v1::JobSpec*)> change;
  bool documents = false;
  std::optional<Recompute> recompute = {};
};

const Variant kVariants[] = {
    {"mlp_sigmoid", [](v1::JobSpec*) {}},
    {"avg_softmax",
     [](v1::JobSpec* spec) {
       spec->mutable_nsa()->set_phi(v1::PHI_AVG);
       spec->mutable_nsa()->set_gate(v1::GATE_SOFTMAX);
     }},
    {"qk_norm", [](v1::JobSpec* spec) { spec->mutable_model()->set_qk_norm(true); }},
    {"qkv_bias", [](v1::JobSpec* spec) { spec->mutable_model()->set_qkv_bias(true); }},
    {"all_of_other_families", UseAllOfOtherFamilies},
    {"all_of_other_families_recomputed", UseAllOfOtherFamilies, true, Recompute::kBlock},
    {"layers_in_turn",
     [](v1::JobSpec* spec) {
       SetLayers(spec, {"win", "cmp+sel"});
     }},
    {"widths_of_the_paper",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_d_k(192);
       spec->mutable_model()->set_d_v(128);
       spec->mutable_model()->set_qk_norm(true);
     }},
    {"documents", [](v1::JobSpec*) {}, true},
    {"block_recomputed", [](v1::JobSpec*) {}, true, Recompute::kBlock},
};

class GpuContext : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(GpuContext, LossesAndGradientsAreThoseOfOneRank) {
  v1::JobSpec spec = GpuContextJob();
  GetParam().change(&spec);
  const ContextBench bench({.spec = spec,
                            .backend = Backend::kCuda,
                            .recompute = GetParam().recompute,
                            .documents = GetParam().documents});
  const RankOutcome one = bench.Run(1)[0];
  for (const int32_t n : {2, 4}) {
    SCOPED_TRACE(n);
    const std::vector<RankOutcome> ranks = bench.Run(n);
    double mean = 0;
    for (const RankOutcome& rank : ranks) mean += rank.loss / n;
    // Matrix products of other shapes may add in another order, which changes roundings to bf16.
    EXPECT_NEAR(mean, one.loss, 2e-3);
    ExpectSameGradients(bench.layout(), SumOfGradients(ranks), one.gradients, 3e-2);
    for (size_t layer = 0; layer < one.stats.size(); ++layer) {
      for (int branch = 0; branch < kBranches; ++branch) {
        int64_t read = 0;
        for (const RankOutcome& rank : ranks) read += rank.stats[layer].keys_read(branch);
        EXPECT_EQ(read, one.stats[layer].keys_read(branch));
      }
    }
    const std::vector<RankOutcome> again = bench.Run(n);
    for (int32_t rank = 0; rank < n; ++rank) {
      EXPECT_EQ(ranks[rank].gradients, again[rank].gradients) << "two runs have other bits";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuContext, ::testing::ValuesIn(kVariants),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace nsa::train
