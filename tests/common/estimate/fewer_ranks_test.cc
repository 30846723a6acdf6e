#include "common/estimate/fewer_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::JobSpec Job(int32_t gpus, int32_t min_ranks, int32_t batch) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_gpus(gpus);
  spec.mutable_restart()->set_min_ranks(min_ranks);
  spec.mutable_train()->set_batch_size(batch);
  return spec;
}

TEST(FewerRanks, AreThoseThatDivideTheBatchTheLargestFirst) {
  EXPECT_THAT(FewerRanks(Job(8, 1, 24)), ElementsAre(6, 4, 3, 2, 1));
  EXPECT_THAT(FewerRanks(Job(8, 3, 24)), ElementsAre(6, 4, 3));
  EXPECT_THAT(FewerRanks(Job(4, 4, 24)), IsEmpty());
  EXPECT_THAT(FewerRanks(Job(4, 3, 8)), IsEmpty());
}

TEST(FewerRanks, AreNoneUnlessAskedFor) {
  v1::JobSpec spec = Job(4, 1, 8);
  spec.mutable_restart()->clear_min_ranks();
  EXPECT_THAT(FewerRanks(spec), IsEmpty());
}

TEST(FewerRanks, AreNoneWhereAClusterManagerGivesTheMachines) {
  v1::JobSpec spec = Job(4, 1, 8);
  spec.mutable_resources()->set_provisioner("slurm");
  EXPECT_THAT(FewerRanks(spec), IsEmpty());
}

TEST(FewerRanks, KeepRanksTogetherThatShareASequence) {
  v1::JobSpec spec = Job(8, 1, 6);
  spec.mutable_resources()->set_context_parallel(2);
  EXPECT_THAT(FewerRanks(spec), ElementsAre(6, 4, 2)) << "three, two groups and one group";
  spec.mutable_train()->set_batch_size(4);
  EXPECT_THAT(FewerRanks(spec), ElementsAre(4, 2)) << "three groups do not divide four sequences";
}

TEST(FewerRanks, NextFewerIsTheLargestThatSharesTheBatch) {
  EXPECT_EQ(NextFewer(Job(8, 1, 24), 8), 6);
  EXPECT_EQ(NextFewer(Job(8, 1, 24), 6), 4);
  EXPECT_EQ(NextFewer(Job(8, 1, 24), 1), 0);
  v1::JobSpec groups = Job(8, 1, 24);
  groups.mutable_resources()->set_context_parallel(4);
  EXPECT_EQ(NextFewer(groups, 8), 4);
  EXPECT_EQ(NextFewer(groups, 4), 0) << "no group is left";
  EXPECT_EQ(NextFewer(groups, 3), 0);
}

TEST(FewerRanks, AreSaidBesideThoseThatTheJobAsksFor) {
  const v1::JobSpec spec = Job(4, 1, 8);
  EXPECT_TRUE(HasFewerRanks(spec, 2));
  EXPECT_FALSE(HasFewerRanks(spec, 4));
  EXPECT_FALSE(HasFewerRanks(spec, 0)) << "not placed";
  EXPECT_EQ(RankCount(spec, 2), "2 of 4");
  EXPECT_EQ(RankCount(spec, 4), "4");
  EXPECT_EQ(RanksText(spec, 2), "2 of 4 ranks");
  EXPECT_EQ(RanksText(spec, 4), "4 ranks");
  EXPECT_EQ(RanksText(Job(1, 1, 8), 1), "1 rank");
}

TEST(FewerRanks, TheThroughputGuardAsksForTheirShare) {
  v1::JobSpec spec = Job(8, 2, 24);
  spec.mutable_guard()->set_min_tokens_per_second(800);
  const v1::JobSpec fewer = WithFewerRanks(spec, 6, 2);
  EXPECT_EQ(fewer.guard().min_tokens_per_second(), 600);
  EXPECT_EQ(fewer.resources().gpus(), 6);
  EXPECT_EQ(fewer.resources().nodes(), 2);
  EXPECT_FALSE(fewer.restart().has_min_ranks()) << "6 to 6 ranks would be refused";
  EXPECT_EQ(fewer.train().batch_size(), 24);
  spec.mutable_guard()->clear_min_tokens_per_second();
  EXPECT_FALSE(WithFewerRanks(spec, 6, 2).guard().has_min_tokens_per_second());
}

}  // namespace
}  // namespace nsa
