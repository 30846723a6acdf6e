#include "server/decide/scheduler.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

NodeSlots Cpu(const std::string& name, int free, int total) {
  return {.name = name, .cpu_free = free, .cpu_total = total};
}

NodeSlots WithRankAddress(NodeSlots node) {
  node.has_rank_address = true;
  return node;
}

NodeSlots Gpus(const std::string& name, std::vector<std::string> free, int total) {
  return {.name = name,
          .cpu_free = 2,
          .cpu_total = 2,
          .gpus_free = std::move(free),
          .gpus_total = total};
}

// "j: a a b": a job and the machines of its ranks in order.
std::vector<std::string> Text(const QueuePlan& plan) {
  std::vector<std::string> lines;
  for (const Placement& placement : plan.placements) {
    std::string line = absl::StrCat(placement.job_id, ":");
    int32_t rank = 0;
    for (const auto& place : placement.ranks) {
      EXPECT_EQ(place.rank(), rank++);
      absl::StrAppend(&line, " ", place.node());
      if (!place.cuda_device().empty()) absl::StrAppend(&line, "/", place.cuda_device());
    }
    lines.push_back(line);
  }
  return lines;
}

TEST(Scheduler, TakesPriorityFirstThenAge) {
  const QueuePlan plan = Schedule({{.id = "old", .order = 1},
                                   {.id = "urgent", .priority = 5, .order = 3},
                                   {.id = "young", .order = 2}},
                                  {Cpu("a", 2, 2)});
  EXPECT_THAT(plan.order, ElementsAre("urgent", "old", "young"));
  EXPECT_THAT(Text(plan), ElementsAre("urgent: a", "old: a"));
  ASSERT_THAT(plan.waiting, SizeIs(1));
  EXPECT_EQ(plan.waiting[0].job_id, "young");
  EXPECT_EQ(plan.waiting[0].reason, "WAITING_FOR_SLOTS");
  EXPECT_THAT(plan.waiting[0].text, HasSubstr("needs 1 CPU slot, 0 are free"));
}

TEST(Scheduler, GivesAGangAllItsSlotsOrNone) {
  const QueuePlan plan = Schedule({{.id = "gang", .ranks = 3}}, {Cpu("a", 2, 4)});
  EXPECT_THAT(plan.placements, IsEmpty());
  EXPECT_EQ(plan.waiting.at(0).reason, "WAITING_FOR_SLOTS");
}

TEST(Scheduler, SlotsThatAreFreeOnSeveralMachinesAreSaidByMachine) {
  const std::vector<NodeSlots> nodes = {Cpu("node-01", 1, 3), Cpu("node-02", 2, 3),
                                        Cpu("full", 0, 3)};
  EXPECT_EQ(Schedule({{.id = "gang", .ranks = 3}}, nodes).waiting.at(0).text,
            "needs 3 CPU slots on one machine; node-02 has 2 of 3 free, node-01 1 of 3");
}

TEST(Scheduler, KeepsAJobWholeRatherThanSplitItAcrossNodes) {
  const QueuePlan plan =
      Schedule({{.id = "two", .ranks = 2}}, {Cpu("a", 1, 2), Cpu("b", 1, 2), Cpu("c", 2, 2)});
  EXPECT_THAT(Text(plan), ElementsAre("two: c c"));
}

TEST(Scheduler, AJobWithoutAUnixUserIsNotPlacedWhereRanksRunAsUsers) {
  NodeSlots users = Cpu("users", 2, 2);
  users.unix_users = true;
  const QueuedJob without = {.id = "without"};
  const QueuedJob with = {.id = "with", .has_unix_user = true};
  EXPECT_THAT(Text(Schedule({without}, {users, Cpu("open", 4, 4)})), ElementsAre("without: open"));
  EXPECT_THAT(Text(Schedule({with}, {users, Cpu("open", 4, 4)})), ElementsAre("with: users"));
  const QueuePlan plan = Schedule({without, with}, {users});
  EXPECT_THAT(Text(plan), ElementsAre("with: users")) << "it does not hold back others";
  ASSERT_THAT(plan.waiting, SizeIs(1));
  EXPECT_EQ(plan.waiting[0].reason, "UNPLACEABLE");
  EXPECT_THAT(plan.waiting[0].text, HasSubstr("1 of them run only jobs"));
  EXPECT_THAT(plan.waiting[0].text, HasSubstr("nsactl token create --unix-user"));
}

TEST(Scheduler, SharesRanksOverAsManyNodesAsAsked) {
  const QueuePlan plan =
      Schedule({{.id = "wide", .ranks = 4, .nodes = 2}},
               {WithRankAddress(Cpu("a", 4, 4)), WithRankAddress(Cpu("b", 2, 2))});
  EXPECT_THAT(Text(plan), ElementsAre("wide: b b a a"));
}

TEST(Scheduler, AJobOfSeveralMachinesGoesWhereRanksCanReachEachOther) {
  const QueuedJob wide = {.id = "wide", .ranks = 2, .nodes = 2};
  const NodeSlots a = WithRankAddress(Cpu("a", 4, 4)), c = WithRankAddress(Cpu("c", 4, 4));
  EXPECT_THAT(Text(Schedule({wide}, {a, Cpu("b", 1, 1), c})), ElementsAre("wide: a c"));
  const QueuePlan plan = Schedule({wide}, {a, Cpu("b", 1, 1)});
  EXPECT_THAT(plan.placements, IsEmpty());
  EXPECT_EQ(plan.waiting.at(0).reason, "UNPLACEABLE");
  EXPECT_THAT(plan.waiting.at(0).text, HasSubstr("1 of them have a rank_address"));
}

// Machines that all have this worker program.
NodeSlots WithProgram(const std::string& name, int free, const std::string& hash) {
  NodeSlots node = WithRankAddress(Cpu(name, free, 2));
  node.makeup = {.name = name, .worker_hash = hash};
  return node;
}

TEST(Scheduler, AJobOfSeveralMachinesGoesToMachinesThatAreAlike) {
  const QueuedJob wide = {.id = "wide", .ranks = 2, .nodes = 2};
  const NodeSlots a = WithProgram("a", 1, "old"), b = WithProgram("b", 2, "new"),
                  c = WithProgram("c", 2, "old");
  EXPECT_THAT(Text(Schedule({wide}, {a, b, c})), ElementsAre("wide: a c"));
  EXPECT_THAT(Text(Schedule({{.id = "one"}}, {b, c})), ElementsAre("one: b")) << "one is enough";
  const QueuePlan plan = Schedule({wide}, {a, b});
  EXPECT_THAT(plan.placements, IsEmpty());
  EXPECT_EQ(plan.waiting.at(0).reason, "UNPLACEABLE");
  EXPECT_THAT(plan.waiting.at(0).text, HasSubstr("b: nsa-worker new, a has old"));
  QueuedJob waived = wide;
  waived.demand.programs = false;
  EXPECT_THAT(Text(Schedule({waived}, {a, b})), ElementsAre("wide: a b"));
}

TEST(Scheduler, TakesTheLargestGroupThatHasRoom) {
  const QueuedJob wide = {.id = "wide", .ranks = 2, .nodes = 2};
  const auto plan = [&](int free_of_old) {
    return Schedule({wide}, {WithProgram("a", free_of_old, "old"), WithProgram("b", 2, "old"),
                             WithProgram("c", 2, "new"), WithProgram("d", 2, "new"),
                             WithProgram("e", free_of_old, "old")});
  };
  EXPECT_THAT(Text(plan(1)), ElementsAre("wide: a e"));
  EXPECT_THAT(Text(plan(0)), ElementsAre("wide: c d"));
  const QueuePlan busy = Schedule(
      {wide}, {WithProgram("a", 0, "old"), WithProgram("b", 2, "old"), WithProgram("c", 2, "new")});
  EXPECT_EQ(busy.waiting.at(0).reason, "WAITING_FOR_SLOTS");
  EXPECT_THAT(busy.waiting.at(0).text, HasSubstr("c: nsa-worker new, a has old"));
}

TEST(Scheduler, ClocksThatDisagreeKeepAJobInTheQueue) {
  NodeSlots a = WithProgram("a", 2, "x"), b = WithProgram("b", 2, "x");
  a.makeup.clock_offset = absl::Seconds(100);
  b.makeup.clock_offset = absl::Seconds(98.5);
  const QueuedJob wide = {.id = "wide", .ranks = 2, .nodes = 2};
  EXPECT_THAT(Schedule({wide}, {a, b}).waiting.at(0).text,
              HasSubstr("b: clock 1.5 s behind that of a"));
  b.makeup.clock_offset = absl::Seconds(99);
  EXPECT_THAT(Text(Schedule({wide}, {a, b})), ElementsAre("wide: a b"));
}

TEST(Scheduler, FillsTheFullestNodeFirst) {
  const QueuePlan plan = Schedule({{.id = "small"}}, {Cpu("empty", 8, 8), Cpu("busy", 1, 8)});
  EXPECT_THAT(Text(plan), ElementsAre("small: busy"));
}

TEST(Scheduler, GivesEachRankAGpuOfItsOwn) {
  const QueuePlan plan = Schedule({{.id = "j", .ranks = 2, .cuda = true}, {.id = "k", .order = 1}},
                                  {Gpus("a", {"GPU-1", "GPU-3"}, 4)});
  EXPECT_THAT(Text(plan), ElementsAre("j: a/GPU-1 a/GPU-3", "k: a"));
}

TEST(Scheduler, AGpuWithAFaultIsNoSlot) {
  v1::NodeInfo node;
  node.set_name("a");
  node.set_cuda_worker(true);
  for (const char* uuid : {"GPU-1", "GPU-2"}) node.add_gpus()->set_uuid(uuid);
  node.mutable_gpus(0)->set_fault("XID 79: the GPU has fallen off the bus");
  const NodeSlots slots = FreeSlots(node, {});
  EXPECT_EQ(slots.gpus_total, 1);
  EXPECT_THAT(slots.gpus_free, ElementsAre("GPU-2"));
}

TEST(Scheduler, LetsNobodyOvertakeTheFirstInLineOfItsKind) {
  const QueuePlan plan = Schedule({{.id = "j1", .order = 1, .ranks = 4, .name = "large"},
                                   {.id = "small", .order = 2},
                                   {.id = "gpu", .order = 3, .cuda = true}},
                                  {Cpu("a", 2, 4), Gpus("b", {"GPU-0"}, 1)});
  EXPECT_THAT(Text(plan), ElementsAre("gpu: b/GPU-0")) << "another kind is not held back";
  ASSERT_THAT(plan.waiting, SizeIs(2));
  EXPECT_EQ(plan.waiting[1].reason, "BEHIND_ANOTHER_JOB");
  EXPECT_EQ(plan.waiting[1].text, "job large is first in line") << "its name, not its id";
}

TEST(Scheduler, AJobIsNamedToItsOwnerOnly) {
  const QueuePlan plan = Schedule(
      {{.id = "j1", .priority = 7, .order = 1, .ranks = 4, .name = "large", .owner = "ada"},
       {.id = "j2", .order = 2, .name = "hers", .owner = "ada"},
       {.id = "j3", .order = 3, .name = "his", .owner = "bob"}},
      {Cpu("a", 2, 4)});
  ASSERT_THAT(plan.waiting, SizeIs(3));
  EXPECT_EQ(plan.waiting[1].text, "job large is first in line");
  EXPECT_EQ(plan.waiting[2].text, "a job of another owner, priority 7, is first in line");
}

TEST(Scheduler, WhatIsSaidOfAKindOfJobIsSaidOfEach) {
  const QueuePlan plan = Schedule({{.id = "j1", .order = 1, .ranks = 64},
                                   {.id = "j2", .order = 2, .ranks = 64},
                                   {.id = "j3", .order = 3, .ranks = 32}},
                                  {Cpu("a", 2, 2)});
  ASSERT_THAT(plan.waiting, SizeIs(3));
  EXPECT_EQ(plan.waiting[1].job_id, "j2");
  EXPECT_EQ(plan.waiting[1].text, plan.waiting[0].text);
  EXPECT_THAT(plan.waiting[2].text, HasSubstr("needs 32 CPU slots"));
}

TEST(Scheduler, AJobThatFitsNowhereHoldsNobodyBack) {
  const QueuePlan plan = Schedule(
      {{.id = "giant", .order = 1, .ranks = 64}, {.id = "small", .order = 2}}, {Cpu("a", 2, 2)});
  EXPECT_THAT(Text(plan), ElementsAre("small: a"));
  EXPECT_EQ(plan.waiting.at(0).reason, "UNPLACEABLE");
  EXPECT_THAT(plan.waiting.at(0).text, HasSubstr("the largest has 2"));
}

NodeSlots Cordoned(NodeSlots node, const std::string& why = "drained by alice (new kernel)") {
  node.cordon = why;
  return node;
}

TEST(Scheduler, PlacesNothingOnACordonedMachine) {
  const QueuePlan plan = Schedule({{.id = "j1", .order = 1, .ranks = 2, .name = "large"},
                                   {.id = "k", .order = 2},
                                   {.id = "giant", .order = 3, .ranks = 9}},
                                  {Cordoned(Cpu("a", 4, 4)), Cpu("b", 1, 1)});
  EXPECT_THAT(Text(plan), ElementsAre("k: b")) << "a job that waits for a cordon holds none back";
  ASSERT_THAT(plan.waiting, SizeIs(2));
  EXPECT_EQ(plan.waiting[0].reason, "CORDONED");
  EXPECT_THAT(plan.waiting[0].text, HasSubstr("a, drained by alice (new kernel)"));
  EXPECT_THAT(plan.waiting[0].text, HasSubstr("nsactl node uncordon"));
  EXPECT_EQ(plan.waiting[1].reason, "UNPLACEABLE") << "not even there";
}

TEST(Scheduler, SlotsOfCordonedMachinesAreNotFree) {
  const QueuePlan plan =
      Schedule({{.id = "j"}}, {Cpu("busy", 0, 2), Cordoned(Cpu("c", 2, 2), "cordoned")});
  EXPECT_THAT(plan.placements, IsEmpty());
  EXPECT_EQ(plan.waiting.at(0).reason, "WAITING_FOR_SLOTS");
  EXPECT_EQ(plan.waiting[0].text,
            "needs 1 CPU slot, 0 are free; 1 machine is cordoned: c, cordoned");
}

TEST(Scheduler, NamesThreeCordonedMachines) {
  std::vector<NodeSlots> nodes;
  for (const char* name : {"a", "b", "c", "d"})
    nodes.push_back(Cordoned(Cpu(name, 1, 1), "cordoned"));
  const QueuePlan plan = Schedule({{.id = "j"}}, nodes);
  EXPECT_THAT(plan.waiting.at(0).text, HasSubstr("4 machines are cordoned: a, "));
}

TEST(Scheduler, AJobOfSeveralMachinesDoesNotUseACordonedOne) {
  const NodeSlots a = WithRankAddress(Cpu("a", 2, 2)), b = WithRankAddress(Cpu("b", 2, 2));
  const QueuedJob wide = {.id = "wide", .ranks = 2, .nodes = 2};
  EXPECT_THAT(Text(Schedule({wide}, {a, b})), ElementsAre("wide: a b"));
  EXPECT_EQ(Schedule({wide}, {a, Cordoned(b)}).waiting.at(0).reason, "CORDONED");
}

TEST(Scheduler, SaysWhenThereIsNoMachine) {
  const QueuePlan plan = Schedule({{.id = "j"}}, {});
  EXPECT_EQ(plan.waiting.at(0).reason, "NO_NODES");
}

TEST(Scheduler, NeverGivesOutMoreThanThereIs) {
  std::vector<QueuedJob> queue;
  for (int i = 0; i < 50; ++i) {
    queue.push_back({.id = absl::StrCat("j", i),
                     .priority = i % 3,
                     .order = i,
                     .ranks = 1 + i % 4,
                     .nodes = 1 + i % 2,
                     .cuda = i % 2 == 0});
  }
  const QueuePlan plan = Schedule(queue, {WithRankAddress(Gpus("a", {"0", "1", "2", "3"}, 4)),
                                          WithRankAddress(Cpu("b", 5, 8))});
  std::map<std::string, int> cpu;
  std::map<std::string, int> gpu;
  for (const Placement& placement : plan.placements) {
    for (const auto& place : placement.ranks) {
      if (place.cuda_device().empty()) {
        ++cpu[place.node()];
      } else {
        EXPECT_EQ(++gpu[absl::StrCat(place.node(), place.cuda_device())], 1);
      }
    }
  }
  EXPECT_LE(cpu["a"], 2);
  EXPECT_LE(cpu["b"], 5);
  EXPECT_EQ(plan.placements.size() + plan.waiting.size(), 50u);
}

}  // namespace
}  // namespace nsa::server
