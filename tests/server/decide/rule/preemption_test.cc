// Which running jobs give way to a waiting one.
#include "server/decide/rule/preemption.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

NodeSlots Machine(const std::string& name, int32_t free, int32_t total) {
  return {.name = name, .cpu_free = free, .cpu_total = total, .has_rank_address = true};
}

// A job that may give way, with one rank on each of these machines ("a a b").
RunningJob Runs(std::string_view id, int32_t priority, int64_t since,
                std::initializer_list<std::string_view> nodes) {
  RunningJob job{.id = id, .priority = priority, .since = since, .may_give_way = true};
  for (const std::string_view node : nodes) job.slots.push_back({.node = node});
  return job;
}

RunningJob Kept(RunningJob job) {
  job.may_give_way = false;
  return job;
}

// It is giving its slots up: for this job, or for another reason.
RunningJob Leaving(RunningJob job, std::string_view preempted_by = "") {
  job.may_give_way = false;
  job.leaving = true;
  job.preempted_by = preempted_by;
  return job;
}

QueuedJob Urgent(const std::string& id, int32_t ranks, int32_t nodes = 1) {
  return {
      .id = id, .priority = 10, .ranks = ranks, .nodes = nodes, .name = id, .may_preempt = true};
}

// "victim>waiting" for each.
std::vector<std::string> Victims(const QueuePlan& plan) {
  std::vector<std::string> lines;
  for (const Preemption& one : plan.preemptions) {
    lines.push_back(absl::StrCat(one.victim, ">", one.waiting));
  }
  return lines;
}

std::vector<std::string> Victims(std::vector<QueuedJob> queue, std::vector<NodeSlots> nodes,
                                 std::vector<RunningJob> running) {
  return Victims(Schedule(std::move(queue), std::move(nodes), {.running = std::move(running)}));
}

TEST(Preemption, TheLowestPriorityGivesWayThenWhoStartedLast) {
  const std::vector<NodeSlots> full = {Machine("a", 0, 3)};
  const RunningJob low_old = Runs("low_old", 0, 1, {"a"});
  const RunningJob low_new = Runs("low_new", 0, 2, {"a"});
  const RunningJob middle = Runs("middle", 5, 3, {"a"});
  EXPECT_THAT(Victims({Urgent("w", 1)}, full, {low_old, middle, low_new}),
              ElementsAre("low_new>w"));
  EXPECT_THAT(Victims({Urgent("w", 2)}, full, {low_old, middle, low_new}),
              UnorderedElementsAre("low_new>w", "low_old>w"));
  EXPECT_THAT(Victims({Urgent("w", 3)}, full, {low_old, middle, low_new}),
              UnorderedElementsAre("low_new>w", "low_old>w", "middle>w"));
}

TEST(Preemption, NoMoreRanksGiveWayThanHaveTo) {
  EXPECT_THAT(Victims({Urgent("w", 1)}, {Machine("a", 0, 4)},
                      {Runs("large", 0, 9, {"a", "a", "a"}), Runs("small", 0, 1, {"a"})}),
              ElementsAre("small>w"));
  EXPECT_THAT(Victims({Urgent("w", 4)}, {Machine("a", 0, 6), Machine("b", 0, 5)},
                      {Runs("a3", 0, 8, {"a", "a", "a"}), Runs("a3too", 0, 9, {"a", "a", "a"}),
                       Runs("b5", 0, 1, {"b", "b", "b", "b", "b"})}),
              ElementsAre("b5>w"))
      << "five ranks on b instead of six on a";
  EXPECT_THAT(Victims({Urgent("w", 3)}, {Machine("a", 2, 4), Machine("b", 0, 3)},
                      {Runs("a2", 0, 1, {"a", "a"}), Runs("b1", 0, 2, {"b"}),
                       Runs("b1b", 0, 3, {"b"}), Runs("b1c", 0, 4, {"b"})}),
              ElementsAre("a2>w"))
      << "with what is free on a";
}

TEST(Preemption, AnotherMachineWithALowerPriorityComesFirst) {
  EXPECT_THAT(Victims({Urgent("w", 2)}, {Machine("a", 0, 2), Machine("b", 0, 2)},
                      {Runs("five", 5, 9, {"a", "a"}), Runs("zero", 0, 1, {"b"}),
                       Runs("one", 1, 1, {"b"})}),
              UnorderedElementsAre("zero>w", "one>w"));
}

TEST(Preemption, NobodyGivesWayInVain) {
  const std::vector<NodeSlots> two = {Machine("a", 0, 2), Machine("b", 0, 2)};
  const RunningJob a = Runs("a1", 0, 1, {"a"}), b = Runs("b1", 0, 1, {"b"});
  const RunningJob kept = Kept(Runs("kept", 0, 1, {"a"}));
  EXPECT_THAT(Victims({Urgent("w", 2)}, two, {a, kept, b}), IsEmpty())
      << "two slots, but on two machines";
  EXPECT_THAT(Victims({Urgent("w", 3)}, two, {a, b}), IsEmpty()) << "no machine has three";
  EXPECT_THAT(Victims({Urgent("w", 1)}, two, {Runs("equal", 10, 1, {"a"})}), IsEmpty());
  EXPECT_THAT(Victims({Urgent("w", 1)}, two, {Runs("higher", 11, 1, {"a"})}), IsEmpty());
  EXPECT_THAT(Victims({Urgent("w", 1)}, two, {kept}), IsEmpty());
  EXPECT_THAT(Victims({Urgent("w", 1)}, {Machine("a", 1, 2), Machine("b", 0, 2)}, {a, b}),
              IsEmpty())
      << "it starts anyhow";
  QueuedJob refused = Urgent("w", 1);
  refused.may_preempt = false;
  EXPECT_THAT(Victims({refused}, two, {a, b}), IsEmpty());
}

TEST(Preemption, SlotsThatNobodyCouldUseDoNotCount) {
  NodeSlots cordoned = Machine("a", 0, 2);
  cordoned.cordon = "drained by alice";
  const RunningJob a = Runs("a2", 0, 1, {"a", "a"}), b = Runs("b2", 0, 1, {"b", "b"});
  EXPECT_THAT(Victims({Urgent("w", 2)}, {cordoned, Machine("b", 0, 2)}, {a, Kept(b)}), IsEmpty());
  EXPECT_THAT(Victims({Urgent("w", 2)}, {cordoned, Machine("b", 0, 2)}, {a, b}),
              ElementsAre("b2>w"));
  EXPECT_THAT(
      Victims({Urgent("w", 2)}, {Machine("b", 0, 2)}, {Runs("c", 0, 1, {"b", "b", "gone"})}),
      IsEmpty())
      << "nobody can tell the rank on a machine that is not ready to end";
  NodeSlots alone = Machine("b", 0, 2);
  alone.has_rank_address = false;
  EXPECT_THAT(Victims({Urgent("w", 2, 2)}, {Machine("a", 0, 2), alone, Machine("c", 0, 1)},
                      {a, b, Kept(Runs("c1", 0, 1, {"c"}))}),
              IsEmpty())
      << "its ranks could not reach each other";
}

TEST(Preemption, AGangOfSeveralMachinesGetsRoomOnEach) {
  const std::vector<NodeSlots> three = {Machine("a", 0, 2), Machine("b", 1, 2), Machine("c", 0, 2)};
  EXPECT_THAT(Victims({Urgent("w", 4, 2)}, three,
                      {Runs("a1", 0, 1, {"a"}), Runs("a2", 0, 2, {"a"}), Runs("b1", 0, 3, {"b"}),
                       Kept(Runs("c2", 0, 4, {"c", "c"}))}),
              UnorderedElementsAre("a1>w", "a2>w", "b1>w"));
  EXPECT_THAT(Victims({Urgent("w", 4, 2)}, {Machine("a", 0, 2), Machine("b", 0, 2)},
                      {Runs("wide", 0, 1, {"a", "a", "b", "b"})}),
              ElementsAre("wide>w"));
  EXPECT_THAT(Victims({Urgent("w", 2, 2)}, {Machine("a", 0, 2), Machine("b", 0, 2)},
                      {Runs("wide", 0, 1, {"a", "b"}), Runs("a1", 0, 9, {"a"}),
                       Kept(Runs("b1", 0, 2, {"b"}))}),
              ElementsAre("wide>w"))
      << "wide has to give way on b and makes room on a too";
}

TEST(Preemption, OfSeveralMachinesOnlyThoseThatAreAlikeGetRoom) {
  std::vector<NodeSlots> nodes;
  for (const auto& [name, hash] :
       {std::pair("a", "old"), std::pair("b", "new"), std::pair("c", "old")}) {
    nodes.push_back(Machine(name, 0, 1));
    nodes.back().makeup = {.name = name, .worker_hash = hash};
  }
  const std::vector<RunningJob> running = {Runs("a1", 5, 9, {"a"}), Runs("b1", 0, 9, {"b"}),
                                           Runs("c1", 5, 9, {"c"})};
  EXPECT_THAT(Victims({Urgent("w", 2, 2)}, nodes, running), UnorderedElementsAre("a1>w", "c1>w"))
      << "b1 has the lowest priority, but no machine is like b";
  nodes[2].makeup.worker_hash = "other";
  EXPECT_THAT(Victims({Urgent("w", 2, 2)}, nodes, running), IsEmpty());
  QueuedJob waived = Urgent("w", 2, 2);
  waived.demand.programs = false;
  EXPECT_THAT(Victims({waived}, nodes, running), UnorderedElementsAre("b1>w", "a1>w"));
}

TEST(Preemption, NobodyGivesWayOnAMachineThatMayNotRunTheJob) {
  std::vector<NodeSlots> nodes = {Machine("a", 0, 1), Machine("b", 0, 1)};
  nodes[0].unix_users = true;
  const std::vector<RunningJob> running = {Runs("a1", 0, 9, {"a"}), Runs("b1", 5, 9, {"b"})};
  EXPECT_THAT(Victims({Urgent("w", 1)}, nodes, running), ElementsAre("b1>w"));
  QueuedJob user = Urgent("w", 1);
  user.has_unix_user = true;
  EXPECT_THAT(Victims({user}, nodes, running), ElementsAre("a1>w"));
}

TEST(Preemption, OnlyJobsWithTheSameKindOfSlotGiveWay) {
  NodeSlots node = Machine("a", 0, 1);
  node.gpus_total = 2;
  node.gpus_held = {"GPU-0", "GPU-1"};
  RunningJob gpu = Runs("gpu", 0, 1, {});
  gpu.slots = {{"a", "GPU-0"}};
  const RunningJob cpu = Runs("cpu", 0, 2, {"a"});
  QueuedJob waiting = Urgent("w", 1);
  EXPECT_THAT(Victims({waiting}, {node}, {gpu, cpu}), ElementsAre("cpu>w"));
  waiting.cuda = true;
  EXPECT_THAT(Victims({waiting}, {node}, {gpu, cpu}), ElementsAre("gpu>w"));
  node.gpus_total = 1;
  node.gpus_held = {"GPU-1"};
  EXPECT_THAT(Victims({waiting}, {node}, {gpu, cpu}), IsEmpty()) << "GPU-0 was taken out";
}

TEST(Preemption, WhatComesFreeAnyhowCountsFirst) {
  const std::vector<NodeSlots> full = {Machine("a", 0, 2)};
  const RunningJob low = Runs("low", 0, 1, {"a"});
  const RunningJob ending = Runs("ending", 0, 1, {"a"});
  EXPECT_THAT(Victims({Urgent("w", 1)}, full, {low, Leaving(ending)}), IsEmpty());
  EXPECT_THAT(Victims({Urgent("w", 1)}, full, {low, Leaving(ending, "w")}), IsEmpty());
  EXPECT_THAT(Victims({Urgent("w", 1)}, full, {low, Leaving(ending, "stopped meanwhile")}),
              IsEmpty());
  EXPECT_THAT(Victims({Urgent("w", 2)}, full, {low, Leaving(ending, "w")}), ElementsAre("low>w"))
      << "after a restart in the middle the rest is chosen";
  EXPECT_THAT(Victims({Urgent("first", 1), Urgent("w", 1)}, full, {low, Leaving(ending, "first")}),
              ElementsAre("low>w"))
      << "but not what another waits for";
}

TEST(Preemption, JobsPreemptInTheOrderOfTheQueue) {
  const std::vector<NodeSlots> full = {Machine("a", 0, 3)};
  const std::vector<RunningJob> running = {Runs("x", 0, 3, {"a"}), Runs("y", 0, 2, {"a"}),
                                           Runs("z", 0, 1, {"a"})};
  EXPECT_THAT(Victims({Urgent("first", 1), Urgent("second", 2)}, full, running),
              ElementsAre("x>first", "z>second", "y>second"));
  EXPECT_THAT(Victims({Urgent("large", 4), Urgent("small", 1)}, {Machine("a", 0, 4)}, running),
              IsEmpty())
      << "nobody overtakes the first in line, which has to wait";
  QueuedJob low = Urgent("low", 1);
  low.priority = 0;
  EXPECT_THAT(Victims({low, Urgent("first", 2)}, full, running), ElementsAre("y>first", "x>first"));
}

TEST(Preemption, TheWaitingJobIsFirstAmongEqualsAndSaysWhoGivesWay) {
  const std::vector<NodeSlots> one = {Machine("a", 1, 2)};
  QueuedJob earlier = Urgent("earlier", 1), waiting = Urgent("w", 2), higher = Urgent("higher", 3);
  earlier.order = 1;
  waiting.order = 2;
  higher.priority = 11;
  const RunningJob low = Leaving(Runs("low", 0, 3, {"a"}), "w");
  const QueuePlan plan = Schedule({earlier, waiting}, one, {.running = {low}});
  EXPECT_THAT(plan.order, ElementsAre("w", "earlier"));
  EXPECT_THAT(plan.placements, IsEmpty()) << "the slot is kept for w";
  EXPECT_EQ(plan.waiting.at(0).text, "needs 2 CPU slots, 1 is free; 1 job gives way to it");
  EXPECT_THAT(Schedule({earlier, waiting, higher}, one, {.running = {low}}).order,
              ElementsAre("higher", "w", "earlier"));

  RunningJob gone = low;  // it has given its slots up and is in the queue
  gone.slots.clear();
  gone.leaving = false;
  const std::vector<NodeSlots> two = {Machine("a", 2, 2)};
  const QueuePlan next = Schedule({earlier, waiting}, two, {.running = {gone}});
  ASSERT_EQ(next.placements.size(), 1u);
  EXPECT_EQ(next.placements[0].job_id, "w");
  waiting.order = 4;
  EXPECT_THAT(Schedule({earlier, waiting}, two, {.running = {gone}}).order,
              ElementsAre("earlier", "w"))
      << "w was queued again later";
}

TEST(Preemption, ASmallerJobOfLowerPriorityDoesNotSlipIn) {
  QueuedJob small{.id = "small", .ranks = 1, .name = "small"};
  const QueuePlan plan = Schedule({small, Urgent("w", 2)}, {Machine("a", 1, 2)},
                                  {.running = {Leaving(Runs("low", 0, 1, {"a"}), "w")}});
  EXPECT_THAT(plan.placements, IsEmpty());
  EXPECT_EQ(plan.waiting.at(1).reason, "BEHIND_ANOTHER_JOB");
}

// Whether the job is placed once these running jobs (a bit for each) have given their slots back.
bool FitsWithout(const QueuedJob& job, std::vector<NodeSlots> nodes,
                 const std::vector<RunningJob>& running, unsigned gone) {
  for (size_t i = 0; i < running.size(); ++i) {
    if ((gone >> i & 1) == 0) continue;
    for (const RunningJob::Slot& slot : running[i].slots) {
      ++std::ranges::find(nodes, slot.node, &NodeSlots::name)->cpu_free;
    }
  }
  return PlaceJob(job, &nodes).has_value();
}

int32_t Highest(const std::vector<RunningJob>& running, unsigned gone) {
  int32_t highest = INT32_MIN;
  for (size_t i = 0; i < running.size(); ++i) {
    if ((gone >> i & 1) != 0) highest = std::max(highest, running[i].priority);
  }
  return highest;
}

// Every subset of up to eight running jobs is tried.
TEST(Preemption, FindsRoomWheneverThereIsSomeAndStopsNobodyWhoCouldStay) {
  std::mt19937 random(7);
  const auto below = [&](unsigned n) { return static_cast<int32_t>(random() % n); };
  constexpr const char* kNames[] = {"a", "b", "c"};
  constexpr const char* kIds[] = {"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"};
  int made_room = 0;
  int in_vain = 0;
  for (int round = 0; round < 2'000; ++round) {
    std::vector<NodeSlots> nodes;
    for (const char* name : kNames) {
      nodes.push_back(Machine(name, below(2), 8));
      if (below(6) == 0) nodes.back().cordon = "cordoned";
    }
    std::vector<RunningJob> running;
    for (int i = 0, count = 1 + below(8); i < count; ++i) {
      running.push_back(Runs(kIds[i], below(4), below(5), {}));
      for (int rank = 1 + below(3); rank > 0; --rank) {
        running.back().slots.push_back({.node = kNames[below(3)]});
      }
      if (below(4) == 0) running.back().may_give_way = false;
    }
    QueuedJob job = Urgent("w", 1 + below(4), 1);
    if (job.ranks % 2 == 0) job.nodes = 1 + below(2);
    job.priority = below(5);
    unsigned allowed = 0;
    for (size_t i = 0; i < running.size(); ++i) {
      if (running[i].may_give_way && running[i].priority < job.priority) allowed |= 1U << i;
    }
    int32_t ceiling = INT32_MAX;
    for (unsigned gone = 1; gone < 1U << running.size(); ++gone) {
      if ((gone & ~allowed) != 0 || !FitsWithout(job, nodes, running, gone)) continue;
      ceiling = std::min(ceiling, Highest(running, gone));
    }
    const bool starts = FitsWithout(job, nodes, running, 0);
    unsigned gone = 0;
    for (const Preemption& one : PlanPreemptions({&job}, nodes, running)) {
      gone |= 1U << (one.victim[1] - '0');
    }
    if (starts || ceiling == INT32_MAX) {
      EXPECT_EQ(gone, 0u) << round;
      ++in_vain;
      continue;
    }
    ++made_room;
    EXPECT_EQ(gone & ~allowed, 0u) << round;
    EXPECT_TRUE(FitsWithout(job, nodes, running, gone)) << round;
    EXPECT_EQ(Highest(running, gone), ceiling) << round << ": lower priorities suffice";
    for (size_t i = 0; i < running.size(); ++i) {
      if ((gone >> i & 1) == 0) continue;
      EXPECT_FALSE(FitsWithout(job, nodes, running, gone & ~(1U << i)))
          << round << ": " << kIds[i] << " gives way in vain";
    }
  }
  EXPECT_GT(made_room, 200);
  EXPECT_GT(in_vain, 200);
}

TEST(Preemption, SlotsAreKeptUntilAllMachinesAreBackAfterARestart) {
  QueuedJob small{.id = "small", .ranks = 1, .name = "small"};
  const std::vector<QueuedJob> queue = {small, Urgent("w", 4, 2)};
  RunningJob gone = Runs("gone", 0, 1, {});
  gone.preempted_by = "w";
  QueueRules rules{.running = {gone}, .machines_missing = true};
  QueuePlan plan = Schedule(queue, {Machine("a", 2, 2)}, rules);
  EXPECT_THAT(plan.placements, IsEmpty());
  EXPECT_EQ(plan.waiting.at(0).reason, "UNPLACEABLE") << "b has not come back yet";
  EXPECT_EQ(plan.waiting.at(1).reason, "BEHIND_ANOTHER_JOB");
  rules.machines_missing = false;
  EXPECT_EQ(Schedule(queue, {Machine("a", 2, 2)}, rules).placements.size(), 1u)
      << "b does not come back: nobody waits for ever";
  rules.running = {Runs("a2", 0, 1, {"a", "a"})};
  EXPECT_THAT(Victims(Schedule({Urgent("x", 1)}, {Machine("a", 0, 2)}, rules)),
              ElementsAre("a2>x"));
  rules.machines_missing = true;
  EXPECT_THAT(Victims(Schedule({Urgent("x", 1)}, {Machine("a", 0, 2)}, rules)), IsEmpty())
      << "b may have room for it";
  rules = {.machines_missing = true};
  EXPECT_EQ(Schedule(queue, {Machine("a", 2, 2)}, rules).placements.size(), 1u)
      << "nobody gave way to w";
}

}  // namespace
}  // namespace nsa::server
