// The order of the queue by fair shares.
#include "server/decide/rule/fair_share.h"

#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

NodeSlots Machine(int32_t free, int32_t total = 8) {
  return {.name = "a", .cpu_free = free, .cpu_total = total};
}

QueuedJob Of(const std::string& share, int64_t order, int32_t ranks = 1) {
  return {.id = absl::StrCat(share, order), .order = order, .ranks = ranks, .share = share};
}

QueueRules With(Shares placed) { return {.shares = std::move(placed)}; }

std::vector<std::string> Placed(const QueuePlan& plan) {
  std::vector<std::string> ids;
  for (const Placement& placement : plan.placements) ids.push_back(placement.job_id);
  return ids;
}

TEST(FairShare, WhoeverHasTheFewestRanksComesFirst) {
  const std::vector<QueuedJob> queue = {Of("x", 1), Of("y", 2), Of("", 3)};
  const Shares placed = {{{false, "x"}, 3}, {{false, "y"}, 1}, {{false, ""}, 2}};
  EXPECT_THAT(Schedule(queue, {Machine(0)}, With(placed)).order, ElementsAre("y2", "3", "x1"));
  EXPECT_THAT(Schedule(queue, {Machine(0)}).order, ElementsAre("x1", "y2", "3"))
      << "without fair shares: first come, first served";
}

TEST(FairShare, EachPlacementCountsForTheNext) {
  const std::vector<QueuedJob> queue = {Of("x", 1, 2), Of("x", 2), Of("x", 3), Of("y", 4),
                                        Of("y", 5)};
  const QueuePlan plan = Schedule(queue, {Machine(5)}, With({}));
  EXPECT_THAT(plan.order, ElementsAre("x1", "y4", "y5", "x2", "x3"));
  EXPECT_THAT(Placed(plan), ElementsAre("x1", "y4", "y5", "x2")) << "as the positions say";
}

TEST(FairShare, ThePositionsAreTheOrderInWhichJobsWillStart) {
  std::vector<QueuedJob> queue = {Of("x", 1), Of("x", 2), Of("x", 3), Of("y", 4), Of("y", 5)};
  std::map<std::string, QueuedJob> jobs;
  for (const QueuedJob& job : queue) jobs[job.id] = job;
  const std::vector<std::string> promised = Schedule(queue, {Machine(0)}, With({})).order;
  Shares placed;
  std::vector<std::string> started;
  while (!queue.empty()) {
    const QueuePlan plan = Schedule(queue, {Machine(1)}, With(placed));
    ASSERT_EQ(plan.placements.size(), 1u);
    const std::string& id = plan.placements[0].job_id;
    started.push_back(id);
    placed[{false, jobs[id].share}] += jobs[id].ranks;
    std::erase_if(queue, [&](const QueuedJob& job) { return job.id == id; });
  }
  EXPECT_EQ(started, promised);
}

TEST(FairShare, PriorityComesFirst) {
  QueuedJob urgent = Of("x", 3);
  urgent.priority = 1;
  EXPECT_THAT(Schedule({Of("y", 1), urgent}, {Machine(0)}, With({{{false, "x"}, 100}})).order,
              ElementsAre("x3", "y1"));
}

TEST(FairShare, GpusAndCpuSlotsAreCountedApart) {
  QueuedJob gpu = Of("x", 1);
  gpu.cuda = true;
  NodeSlots node = Machine(1);
  node.gpus_total = 1;
  QueuedJob other = Of("y", 2);
  other.cuda = true;
  const QueuePlan plan =
      Schedule({gpu, other}, {node}, With({{{false, "x"}, 9}, {{true, "y"}, 1}}));
  EXPECT_THAT(plan.order, ElementsAre("x1", "y2"));
}

TEST(FairShare, AJobThatFitsNowhereCountsForNobody) {
  const QueuePlan plan = Schedule({Of("x", 1, 64), Of("x", 2), Of("y", 3)}, {Machine(0)}, With({}));
  EXPECT_THAT(plan.order, ElementsAre("x1", "x2", "y3"));
}

TEST(FairShare, AJobOfALabelWithoutRanksIsNotOvertakenByLaterOnes) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<QueuedJob> queue = {Of("waiting", 10, 4)};
    Shares placed;
    for (int i = 0; i < 20; ++i) {
      const std::string value = absl::StrCat("v", random() % 4);
      queue.push_back(Of(value, 11 + i, 1 + static_cast<int32_t>(random() % 4)));
      placed[{false, value}] = static_cast<int64_t>(random() % 3);
    }
    const QueuePlan plan = Schedule(queue, {Machine(3)}, With(placed));
    EXPECT_EQ(plan.order.front(), "waiting10");
    EXPECT_THAT(plan.placements, IsEmpty());
  }
}

}  // namespace
}  // namespace nsa::server
