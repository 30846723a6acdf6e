// The rule CONTEXT_PARALLEL, and the rules that count sequences of groups instead of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/estimate/estimate.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/passes.h"
#include "common/preflight/preflight.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Four GPUs in groups of two, with two sequences: one for each group.
void Share(GoodJob* job) {
  job->spec.mutable_resources()->set_gpus(4);
  job->spec.mutable_resources()->set_context_parallel(2);
  while (job->machine.gpus.size() < 4) job->machine.gpus.push_back(job->machine.gpus[0]);
}

// "field: problem" of the findings of a rule.
std::vector<std::string> Findings(const GoodJob& job, const std::string& rule) {
  std::vector<std::string> texts;
  const v1::PreflightReport report = Preflight(job.spec, job.context);
  for (const v1::Finding& finding : report.findings()) {
    if (finding.rule() == rule) texts.push_back(finding.field() + ": " + finding.problem());
  }
  return texts;
}

TEST(ContextRules, AcceptWholeGroupsOfRanksHeadsAndTokens) {
  GoodJob job;
  Share(&job);
  const v1::PreflightReport report = Preflight(job.spec, job.context);
  EXPECT_TRUE(report.accepted()) << FormatReport(report, "");
  // Fewer sequences than ranks, but as many as groups.
  EXPECT_LT(job.spec.train().batch_size(), job.spec.resources().gpus());
}

TEST(ContextRules, NameEveryNumberThatIsNotDivided) {
  GoodJob job;
  Share(&job);
  job.spec.mutable_resources()->set_context_parallel(3);
  EXPECT_THAT(Findings(job, "CONTEXT_PARALLEL"),
              ElementsAre(HasSubstr("(must divide resources.gpus = 4)"),
                          HasSubstr("(must divide model.n_kv_groups = 2)"),
                          HasSubstr("(must divide train.seq_len = 2048)")));
  job.spec.mutable_resources()->set_context_parallel(0);
  EXPECT_THAT(Findings(job, "CONTEXT_PARALLEL"),
              ElementsAre(StartsWith("resources.context_parallel: 0")));
  job.spec.mutable_resources()->clear_context_parallel();
  EXPECT_THAT(Findings(job, "CONTEXT_PARALLEL"), ElementsAre());
}

TEST(ContextRules, RefuseAFallbackOfOneRankAlone) {
  GoodJob job;
  Share(&job);
  job.spec.mutable_data()->set_allow_synthetic_fallback(true);
  EXPECT_THAT(Findings(job, "CONTEXT_PARALLEL"),
              ElementsAre(HasSubstr("data.allow_synthetic_fallback: true")));
}

TEST(ContextRules, CountSequencesByGroups) {
  GoodJob job;
  Share(&job);
  Train(&job)->set_batch_size(3);
  EXPECT_THAT(Findings(job, "BATCH_NOT_DIVISIBLE"), ElementsAre(StartsWith("train.batch_size: 3")));
}

TEST(ContextRules, KeepAGroupOnOneMachine) {
  GoodJob job;
  Share(&job);
  job.machine.rank_address = "10.0.0.1";
  job.spec.mutable_resources()->set_nodes(2);
  EXPECT_THAT(Findings(job, "CONTEXT_PARALLEL"), ElementsAre());
  job.spec.mutable_resources()->set_nodes(4);
  EXPECT_THAT(Findings(job, "CONTEXT_PARALLEL"),
              ElementsAre(StartsWith("resources.nodes: 4 machines for 4")));
  job.spec.mutable_resources()->set_gpus(6);
  job.spec.mutable_resources()->set_nodes(2);
  EXPECT_THAT(Findings(job, "CONTEXT_PARALLEL"), Contains(HasSubstr("2 machines for 6 ranks")));
}

v1::JobSpec Long(int32_t gpus, int32_t context) {
  v1::JobSpec spec;
  spec.mutable_train()->set_seq_len(131072);
  spec.mutable_train()->set_batch_size(1);
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  spec.mutable_runtime()->set_gradient_checkpointing(true);
  spec.mutable_resources()->set_gpus(gpus);
  spec.mutable_resources()->set_context_parallel(context);
  ApplyDefaults(&spec);
  ResolveDevice(/*has_gpu=*/true, &spec);
  return spec;
}

int64_t BytesOf(const v1::JobSpec& spec, const std::string& item) {
  for (const MemoryItem& part : MemoryEstimate(spec)) {
    if (part.name.starts_with(item)) return part.bytes;
  }
  return -1;
}

TEST(ContextEstimate, EachRankHoldsItsShareOfTheActivations) {
  const v1::JobSpec one = Long(1, 1), two = Long(2, 2);
  EXPECT_EQ(RankTokens(one), 131072);
  EXPECT_EQ(RankTokens(two), 65536);
  EXPECT_EQ(RankShapeOf(two).n_heads, 6);
  EXPECT_EQ(RankShapeOf(two).n_kv_groups, 1);
  EXPECT_EQ(RankShapeOf(two).seq_len, 131072);
  EXPECT_EQ(BytesOf(two, "logits"), BytesOf(one, "logits") / 2);
  // Without checkpointing, so that both keep the same: with it, one GPU recomputes whole blocks.
  v1::JobSpec one_keeps = one, two_keep = two;
  one_keeps.mutable_runtime()->set_gradient_checkpointing(false);
  two_keep.mutable_runtime()->set_gradient_checkpointing(false);
  for (const char* const item : {"activations", "attention, saved"}) {
    const auto whole = static_cast<double>(BytesOf(one_keeps, item));
    EXPECT_NEAR(static_cast<double>(BytesOf(two_keep, item)), whole / 2, 0.001 * whole) << item;
  }
  EXPECT_EQ(BytesOf(two, "master weights"), BytesOf(one, "master weights"));
  EXPECT_NEAR(FlopsPerToken(two) / FlopsPerToken(one), 1, 1e-12);
  const double speed = ExpectedTokensPerSecond(two, "NVIDIA H100", 1) /
                       ExpectedTokensPerSecond(one, "NVIDIA H100", 1);
  EXPECT_GT(speed, 1.7);
  EXPECT_LE(speed, 2.7);  // two GPUs need not recompute whole blocks
}

}  // namespace
}  // namespace nsa
