// Training with resources.context_parallel: ranks that share sequences train as one rank does.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

using ::testing::HasSubstr;

// Sequences of texts with several documents in each.
v1::JobSpec ContextJob(const TempDir& dir, const std::string& out, int32_t ranks, int32_t context) {
  v1::JobSpec spec = Job(dir, out);
  v1::DataSpec* const data = spec.mutable_data();
  data->set_source(v1::DATA_SOURCE_JSONL);
  data->set_tokenizer(v1::TOKENIZER_BYTE);
  data->set_val_fraction(0.1);
  spec.mutable_model()->set_vocab(256);
  spec.mutable_train()->set_accumulate_grad_batches(2);
  spec.mutable_nsa()->set_audit_every(4);
  spec.mutable_guard()->set_hash_every(3);
  spec.mutable_resources()->set_gpus(ranks);
  spec.mutable_resources()->set_context_parallel(context);
  const std::filesystem::path file = dir / "train.jsonl";
  if (!std::filesystem::exists(file)) {
    std::string lines;
    for (int i = 0; i < 200; ++i) {
      std::string text;
      for (int c = 0; c < 9 + i % 17; ++c) {
        text += static_cast<char>('a' + (i * 7919 + c * c * 31) % 26);
      }
      absl::StrAppend(&lines, "{\"text\": \"", text, "\"}\n");
    }
    std::ofstream(file) << lines;
  }
  data->add_path(file);
  ApplyDefaults(&spec);
  return spec;
}

std::vector<RankResult> RunContext(const v1::JobSpec& spec, RunOptions options = {}) {
  const TempDir runs;
  options.world = spec.resources().gpus();
  return RunJob(runs, spec, options);
}

void ExpectNear(const RankResult& got, const RankResult& want) {
  ASSERT_EQ(got.finished.outcome(), v1::OUTCOME_COMPLETED) << got.finished.text();
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (size_t i = 0; i < got.steps.size(); ++i) {
    // The order of sums differs; steps let the difference grow.
    EXPECT_NEAR(got.steps[i].loss(), want.steps[i].loss(), i == 0 ? 2e-6 : 1e-3) << i;
    EXPECT_NEAR(got.steps[i].grad_norm(), want.steps[i].grad_norm(),
                (i == 0 ? 1e-5 : 2e-2) * want.steps[i].grad_norm());
    EXPECT_EQ(got.steps[i].tokens(), want.steps[i].tokens());
  }
  ASSERT_EQ(got.evals.size(), want.evals.size());
  for (size_t i = 0; i < got.evals.size(); ++i) {
    EXPECT_NEAR(got.evals[i].loss(), want.evals[i].loss(), 1e-3);
    EXPECT_EQ(got.evals[i].tokens(), want.evals[i].tokens());
  }
}

struct Variant {
  const char* name;
  std::function<void(v1::JobSpec*)> change;
};

class TrainerContext : public ::testing::TestWithParam<Variant> {};

TEST_P(TrainerContext, TrainsAsOneRankDoes) {
  const TempDir dir;
  const auto job = [&](const std::string& out, int32_t ranks, int32_t context) {
    v1::JobSpec spec = ContextJob(dir, out, ranks, context);
    GetParam().change(&spec);
    return spec;
  };
  const RankResult alone = RunContext(job("one", 1, 1))[0];
  ASSERT_EQ(alone.finished.outcome(), v1::OUTCOME_COMPLETED) << alone.finished.text();
  for (const auto& [ranks, out] : {std::pair(2, "two"), {4, "four"}}) {
    SCOPED_TRACE(out);
    const std::vector<RankResult> gang = RunContext(job(out, ranks, 2));
    ExpectNear(gang[0], alone);
    for (const RankResult& rank : gang) {
      EXPECT_EQ(Losses(rank), Losses(gang[0]));
      EXPECT_FALSE(rank.HasEvent("PARAMETERS_DIFFER"));
      EXPECT_NE(rank.steps.back().parameters_hash(), 0u);
      EXPECT_EQ(rank.steps.back().parameters_hash(), gang[0].steps.back().parameters_hash());
    }
    const std::vector<RankResult> again = RunContext(job(absl::StrCat(out, "-again"), ranks, 2));
    EXPECT_EQ(Losses(again[0]), Losses(gang[0]));
    EXPECT_TRUE(Weights(dir / out, 12) == Weights(dir / absl::StrCat(out, "-again"), 12));
  }
}

const Variant kVariants[] = {
    {"plain", [](v1::JobSpec*) {}},
    {"documents", [](v1::JobSpec* spec) { spec->mutable_data()->set_document_mask(true); }},
    {"checkpointing",
     [](v1::JobSpec* spec) { spec->mutable_runtime()->set_gradient_checkpointing(true); }},
    {"layers_avg_muon",
     [](v1::JobSpec* spec) {
       SetLayers(spec, {"win", "cmp+sel"});
       spec->mutable_nsa()->set_phi(v1::PHI_AVG);
       spec->mutable_model()->set_qk_norm(true);
       spec->mutable_train()->set_optimizer(v1::OPTIMIZER_MUON);
     }},
};

INSTANTIATE_TEST_SUITE_P(All, TrainerContext, ::testing::ValuesIn(kVariants),
                         [](const auto& test) { return test.param.name; });

// The statistics of a group are those of one rank with its sequences.
TEST(TrainerContextJobs, TheStatisticsOfAStepAreThoseOfAllHeads) {
  const TempDir dir;
  const RankResult alone = RunContext(ContextJob(dir, "one", 1, 1))[0];
  const std::vector<RankResult> pair = RunContext(ContextJob(dir, "pair", 2, 2));
  ASSERT_EQ(pair[0].steps.size(), alone.steps.size()) << pair[0].finished.text();
  for (int layer = 0; layer < 2; ++layer) {
    const v1::LayerStats& one = alone.steps[3].layers(layer);
    for (const RankResult& rank : pair) {
      const v1::LayerStats& two = rank.steps[3].layers(layer);
      EXPECT_EQ(two.layer(), layer);
      for (int branch = 0; branch < 3; ++branch) {
        EXPECT_GT(two.keys_read(branch), 0);
        EXPECT_EQ(two.keys_read(branch), one.keys_read(branch));
        EXPECT_EQ(two.keys_expected(branch), one.keys_expected(branch));
        EXPECT_NEAR(two.gate().branch_share(branch), one.gate().branch_share(branch), 1e-3);
      }
      EXPECT_NEAR(two.gate().entropy_mean(), one.gate().entropy_mean(), 1e-3);
      EXPECT_NEAR(two.gate().entropy_min(), one.gate().entropy_min(), 1e-3);
      EXPECT_EQ(two.selection().rows(), one.selection().rows());
      EXPECT_NEAR(two.selection().keys_mean(), one.selection().keys_mean(), 1e-9);
      ASSERT_TRUE(two.has_audit() && one.has_audit());
      EXPECT_EQ(two.audit().queries(), one.audit().queries());
      EXPECT_NEAR(two.audit().window_mass(), one.audit().window_mass(), 1e-3);
    }
  }
}

// Four ranks: two groups with other sequences each.
TEST(TrainerContextJobs, EachGroupHasTheStatisticsOfItsSequences) {
  const TempDir dir;
  const std::vector<RankResult> apart = RunContext(ContextJob(dir, "apart", 2, 1));
  const std::vector<RankResult> shared = RunContext(ContextJob(dir, "shared", 4, 2));
  ASSERT_EQ(shared[0].steps.size(), apart[0].steps.size()) << shared[0].finished.text();
  for (int rank = 0; rank < 4; ++rank) {
    const v1::GateStats& got = shared[rank].steps[0].layers(1).gate();
    const v1::GateStats& want = apart[rank / 2].steps[0].layers(1).gate();
    EXPECT_NEAR(got.entropy_mean(), want.entropy_mean(), 1e-6);
    EXPECT_NEAR(got.max_gate_max(), want.max_gate_max(), 1e-5);
  }
  EXPECT_NE(shared[0].steps[0].layers(1).gate().entropy_mean(),
            shared[2].steps[0].layers(1).gate().entropy_mean());
}

TEST(TrainerContextJobs, ASourcesRowsAreCountedOnce) {
  const TempDir dir;
  const auto job = [&](const std::string& out, int32_t ranks, int32_t context) {
    v1::JobSpec spec = ContextJob(dir, out, ranks, context);
    const std::string path = spec.data().path(0);
    spec.mutable_data()->clear_source();
    spec.mutable_data()->clear_path();
    for (const char* const name : {"a", "b"}) {
      v1::MixSource* const mix = spec.mutable_data()->add_mix();
      mix->set_name(name);
      mix->set_source(v1::DATA_SOURCE_JSONL);
      mix->add_path(path);
      mix->set_weight(*name == 'a' ? 1 : 3);
    }
    ApplyDefaults(&spec);
    return spec;
  };
  const RankResult alone = RunContext(job("one", 1, 1))[0];
  const RankResult shared = RunContext(job("two", 2, 2))[0];
  ASSERT_EQ(shared.finished.outcome(), v1::OUTCOME_COMPLETED) << shared.finished.text();
  for (size_t i = 0; i < alone.steps.size(); ++i) {
    for (int source = 0; source < 2; ++source) {
      const v1::SourceShare& got = shared.steps[i].sources(source);
      EXPECT_EQ(got.rows(), alone.steps[i].sources(source).rows());
      EXPECT_NEAR(got.loss(), alone.steps[i].sources(source).loss(), 1e-3);
    }
  }
}

// A checkpoint is the same whatever the ranks share: it continues with any number of ranks.
TEST(TrainerContextJobs, ContinuesWithAnotherNumberOfRanks) {
  const TempDir dir;
  const RankResult whole = RunContext(ContextJob(dir, "whole", 4, 2))[0];
  for (const auto& [ranks, context] : {std::pair(4, 2), {2, 2}, {2, 1}, {1, 1}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, " << context << " share a sequence");
    const std::string out = absl::StrCat("from-4-to-", ranks, "-", context);
    RunContext(ContextJob(dir, out, 4, 2), StopAt(5, 0));
    const std::vector<RankResult> rest =
        RunContext(ContextJob(dir, out, ranks, context), {.generation = 2});
    ASSERT_EQ(rest[0].finished.outcome(), v1::OUTCOME_COMPLETED) << rest[0].finished.text();
    EXPECT_EQ(rest[0].started.resumed_step(), 5);
    ASSERT_EQ(rest[0].steps.size(), 7u);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_NEAR(rest[0].steps[i].loss(), whole.steps[5 + i].loss(), 1e-3);
      if (ranks == 4) {
        EXPECT_EQ(rest[0].steps[i].loss(), whole.steps[5 + i].loss());
      }
    }
  }
}

TEST(TrainerContextJobs, RanksThatAreNoWholeGroupsAreRefused) {
  const TempDir dir;
  const v1::JobSpec spec = ContextJob(dir, "out", 1, 2);
  const RankResult result = RunContext(spec)[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(result.finished.text(), HasSubstr("resources.context_parallel: 2"));
  v1::JobSpec batch = ContextJob(dir, "out", 4, 2);
  batch.mutable_train()->set_batch_size(3);
  EXPECT_THAT(RunContext(batch)[0].finished.text(), HasSubstr("train.batch_size: 3"));
}

}  // namespace
}  // namespace nsa::train
