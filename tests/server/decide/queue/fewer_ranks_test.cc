// Starts with fewer ranks than a job asks for (restart.min_ranks).
#include "common/estimate/fewer_ranks.h"

#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/decide/queue/start.h"
#include "server/decide/scheduler.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

NodeSlots Machine(const std::string& name, int free, int total) {
  return {.name = name, .cpu_free = free, .cpu_total = total, .has_rank_address = true};
}

// "a a b": the machines of the first placement's ranks; empty if nothing is placed.
std::string Places(const QueuePlan& plan) {
  if (plan.placements.empty()) return "";
  std::vector<std::string> places;
  int32_t rank = 0;
  for (const v1::RankPlacement& place : plan.placements[0].ranks) {
    EXPECT_EQ(place.rank(), rank++);
    places.push_back(place.node());
  }
  std::string text;
  for (const std::string& place : places) absl::StrAppend(&text, text.empty() ? "" : " ", place);
  return text;
}

const QueuedJob kFourOnTwo = {.id = "j", .ranks = 4, .nodes = 2, .fewer = {2, 1}, .name = "four"};

TEST(FewerRanks, AllRanksStartIfThereIsRoom) {
  EXPECT_EQ(Places(Schedule({kFourOnTwo}, {Machine("a", 2, 2), Machine("b", 2, 2)})), "a a b b");
}

TEST(FewerRanks, TheLargestNumberForWhichThereIsRoomStarts) {
  EXPECT_EQ(Places(Schedule({kFourOnTwo}, {Machine("a", 2, 2), Machine("b", 0, 2)})), "a a");
  EXPECT_EQ(Places(Schedule({kFourOnTwo}, {Machine("a", 2, 2)})), "a a") << "b is lost";
  EXPECT_EQ(Places(Schedule({kFourOnTwo}, {Machine("a", 1, 2), Machine("b", 1, 2)})), "a b")
      << "two machines with room for one each";
  EXPECT_EQ(Places(Schedule({kFourOnTwo}, {Machine("a", 1, 2), Machine("b", 0, 2)})), "a");
}

TEST(FewerRanks, OneMachineComesBeforeTwoAndHasNoMoreRanksThanItsShare) {
  EXPECT_EQ(
      Places(Schedule({kFourOnTwo}, {Machine("a", 1, 2), Machine("b", 1, 2), Machine("c", 2, 2)})),
      "c c");
  QueuedJob three = kFourOnTwo;
  three.fewer = {3};
  EXPECT_EQ(Places(Schedule({three}, {Machine("a", 3, 3)})), "") << "two are its share";
}

TEST(FewerRanks, OnOneMachineNoRankAddressIsNeeded) {
  NodeSlots alone = Machine("a", 2, 2);
  alone.has_rank_address = false;
  EXPECT_EQ(Places(Schedule({kFourOnTwo}, {alone})), "a a");
}

TEST(FewerRanks, AJobThatDoesNotAskForItWaits) {
  QueuedJob all = kFourOnTwo;
  all.fewer.clear();
  EXPECT_EQ(Places(Schedule({all}, {Machine("a", 2, 2), Machine("b", 0, 2)})), "");
}

TEST(FewerRanks, AWaitingJobSaysHowManyItNeeds) {
  QueuePlan plan = Schedule({kFourOnTwo}, {Machine("a", 0, 2), Machine("b", 0, 2)});
  EXPECT_EQ(plan.waiting.at(0).text,
            "needs 4 CPU slots, at least 1 (restart.min_ranks), 0 are free");
  QueuedJob gpus = kFourOnTwo;
  gpus.cuda = true;
  plan = Schedule({gpus}, {Machine("a", 0, 2)});
  EXPECT_EQ(plan.waiting.at(0).reason, "UNPLACEABLE");
  EXPECT_THAT(plan.waiting.at(0).text, HasSubstr("needs 2 GPUs on each of 2 machines"));
}

TEST(FewerRanks, NobodyOvertakesAJobThatWaitsForTheFewest) {
  QueuedJob first = kFourOnTwo;
  first.fewer = {2};
  const QueuedJob second = {.id = "k", .order = 1};
  const QueuePlan plan = Schedule({first, second}, {Machine("a", 1, 2)});
  EXPECT_THAT(plan.placements, IsEmpty());
  EXPECT_EQ(plan.waiting.at(1).reason, "BEHIND_ANOTHER_JOB");
}

TEST(FewerRanks, AllAreWaitedForWhileMachinesMayStillComeBack) {
  const QueueRules starting = {.machines_missing = true};
  const QueuePlan plan = Schedule({kFourOnTwo}, {Machine("a", 2, 2)}, starting);
  EXPECT_THAT(plan.placements, IsEmpty());
  EXPECT_EQ(plan.waiting.at(0).reason, "WAITING_FOR_SLOTS");
}

TEST(FewerRanks, AllAreWaitedForWhileOthersGiveWay) {
  RunningJob victim = {.id = "v", .since = 1, .leaving = true, .preempted_by = "j"};
  victim.slots = {{.node = "b"}, {.node = "b"}};
  const std::vector<NodeSlots> nodes = {Machine("a", 2, 2), Machine("b", 0, 2)};
  EXPECT_EQ(Places(Schedule({kFourOnTwo}, nodes, {.running = {victim}})), "");
  victim.preempted_by = "another";
  EXPECT_EQ(Places(Schedule({kFourOnTwo}, nodes, {.running = {victim}})), "a a");
}

TEST(FewerRanks, AStoredJobIsQueuedWithItsNumbers) {
  v1::StoredJob job;
  job.mutable_job()->mutable_spec()->mutable_resources()->set_gpus(4);
  job.mutable_job()->mutable_spec()->mutable_train()->set_batch_size(12);
  EXPECT_THAT(InQueue(job, false).fewer, IsEmpty());
  job.mutable_job()->mutable_spec()->mutable_restart()->set_min_ranks(2);
  EXPECT_THAT(InQueue(job, false).fewer, ElementsAre(3, 2));
}

TEST(FewerRanks, AStartIsTheJobWithTheRanksAndMachinesItHas) {
  v1::StoredJob job;
  job.mutable_job()->mutable_spec()->mutable_resources()->set_gpus(4);
  job.mutable_job()->mutable_spec()->mutable_resources()->set_nodes(2);
  EXPECT_FALSE(HasFewerRanks(job)) << "not placed";
  for (const char* node : {"a", "a"}) job.add_placements()->set_node(node);
  EXPECT_TRUE(HasFewerRanks(job));
  EXPECT_EQ(SpecOfStart(job).resources().gpus(), 2);
  EXPECT_EQ(SpecOfStart(job).resources().nodes(), 1);
  EXPECT_EQ(RanksText(job.job().spec(), 2), "2 of 4 ranks");
  for (const char* node : {"b", "b"}) job.add_placements()->set_node(node);
  EXPECT_FALSE(HasFewerRanks(job));
  EXPECT_EQ(SpecOfStart(job).resources().nodes(), 2);
  EXPECT_EQ(RanksText(job.job().spec(), 4), "4 ranks");
}

// Whether that many ranks fit on exactly that many machines, each with the same share, the last
// with the rest.
bool Fits(const std::vector<NodeSlots>& nodes, int ranks, int machines) {
  const int share = (ranks + machines - 1) / machines;
  if ((machines - 1) * share >= ranks) return false;
  int fitting = 0;
  for (const NodeSlots& node : nodes) {
    fitting += node.cordon.empty() && node.cpu_free >= share ? 1 : 0;
  }
  return fitting >= machines;
}

// Every number of ranks and machines is tried.
TEST(FewerRanks, ThereIsNeverRoomForMore) {
  std::mt19937 random(11);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  std::map<std::string, int> outcomes;
  for (int round = 0; round < 5'000; ++round) {
    std::vector<NodeSlots> nodes;
    for (const char* name : {"a", "b", "c", "d"}) {
      const int total = below(5);
      nodes.push_back(Machine(name, below(static_cast<unsigned>(total) + 1), total));
      if (below(8) == 0) nodes.back().cordon = "cordoned";
    }
    QueuedJob job = {.id = "j"};
    job.nodes = 1 + below(3);
    job.ranks = job.nodes * (1 + below(3));
    for (int ranks = job.ranks - 1; ranks > 0; --ranks) {
      if (below(3) > 0) job.fewer.push_back(ranks);
    }
    const int share = job.ranks / job.nodes;
    int most = Fits(nodes, job.ranks, job.nodes) ? job.ranks : 0;
    for (size_t i = 0; most == 0 && i < job.fewer.size(); ++i) {
      for (int machines = 1; machines <= job.nodes; ++machines) {
        if (job.fewer[i] > machines * share) continue;  // more than its share on one
        if (Fits(nodes, job.fewer[i], machines)) most = job.fewer[i];
      }
    }
    const QueuePlan plan = Schedule({job}, nodes);
    const int placed =
        plan.placements.empty() ? 0 : static_cast<int>(plan.placements[0].ranks.size());
    ASSERT_EQ(placed, most) << "round " << round;
    std::map<std::string, int> on;
    if (placed > 0) {
      for (const v1::RankPlacement& place : plan.placements[0].ranks) ++on[place.node()];
    }
    EXPECT_LE(on.size(), static_cast<size_t>(job.nodes)) << "round " << round;
    for (const NodeSlots& node : nodes) {
      EXPECT_LE(on[node.name], std::min(share, node.cpu_free)) << "round " << round;
      if (!node.cordon.empty()) {
        EXPECT_EQ(on[node.name], 0) << "round " << round;
      }
    }
    ++outcomes[placed == 0 ? "none" : placed == job.ranks ? "all" : "fewer"];
  }
  for (const char* outcome : {"none", "fewer", "all"}) EXPECT_GT(outcomes[outcome], 300) << outcome;
}

}  // namespace
}  // namespace nsa::server
