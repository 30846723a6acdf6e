#include "server/decide/allocation/allocation.h"

#include "gmock/gmock.h"
#include "server/decide/transition.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using v1::Allocation;
using v1::Job;
using AllocationKind = AllocationStep::Kind;
using Phase = ClusterJob::Phase;
using End = ClusterJob::End;

const absl::Time kAllocationNow = absl::FromUnixSeconds(1'800'000'000);

v1::StoredJob JobIn(Job::State state, Allocation::State allocation,
                    const std::string& number = "") {
  v1::StoredJob job;
  job.mutable_job()->set_state(state);
  job.mutable_job()->mutable_spec()->mutable_resources()->set_provisioner("slurm");
  job.mutable_job()->mutable_spec()->mutable_restart()->set_stop_grace_seconds(30);
  if (allocation == Allocation::STATE_UNSPECIFIED) return job;
  Allocation& made = *job.mutable_job()->mutable_allocation();
  made.set_provisioner("slurm");
  made.set_id("aabcdefghijkl");
  made.set_state(allocation);
  made.set_cluster_id(number);
  return job;
}

ClusterJob Seen(const std::string& number, Phase phase, End end = End::kNone) {
  return {.number = number, .name = "nsa-aabcdefghijkl", .phase = phase, .end = end, .word = "W"};
}

TEST(WantsAllocation, WhileTheJobIsQueuedAndHasNone) {
  EXPECT_TRUE(
      WantsAllocation(JobIn(Job::STATE_QUEUED, Allocation::STATE_UNSPECIFIED), kAllocationNow));
  EXPECT_TRUE(WantsAllocation(JobIn(Job::STATE_QUEUED, Allocation::STATE_ENDED), kAllocationNow));
  for (const auto state : {Allocation::STATE_REQUESTED, Allocation::STATE_PENDING,
                           Allocation::STATE_RUNNING, Allocation::STATE_ENDING}) {
    EXPECT_FALSE(WantsAllocation(JobIn(Job::STATE_QUEUED, state), kAllocationNow)) << state;
  }
  EXPECT_FALSE(WantsAllocation(JobIn(Job::STATE_STOPPED, Allocation::STATE_ENDED), kAllocationNow));
  v1::StoredJob job = JobIn(Job::STATE_QUEUED, Allocation::STATE_UNSPECIFIED);
  job.mutable_job()->set_next_start_unix_nanos(
      absl::ToUnixNanos(kAllocationNow + absl::Seconds(1)));
  EXPECT_FALSE(WantsAllocation(job, kAllocationNow)) << "a refused start waits for its next try";
  job = JobIn(Job::STATE_QUEUED, Allocation::STATE_UNSPECIFIED);
  job.mutable_job()->mutable_spec()->mutable_resources()->clear_provisioner();
  EXPECT_FALSE(WantsAllocation(job, kAllocationNow));
}

TEST(NextStep, AsksOnlyWhenNoJobHasTheName) {
  const v1::StoredJob job = JobIn(Job::STATE_QUEUED, Allocation::STATE_REQUESTED);
  EXPECT_EQ(NextStep(job, {}).kind, AllocationKind::kSubmit);
  const AllocationStep found = NextStep(job, {Seen("9", Phase::kPending)});
  EXPECT_EQ(found.kind, AllocationKind::kNote);
  EXPECT_EQ(found.job.number, "9");
}

TEST(NextStep, OfTwoOfOneNameTheFirstIsMeantAndTheOtherCancelled) {
  const v1::StoredJob job = JobIn(Job::STATE_QUEUED, Allocation::STATE_REQUESTED);
  const std::vector<ClusterJob> seen = {Seen("10", Phase::kPending), Seen("9", Phase::kRunning),
                                        Seen("8", Phase::kEnded, End::kCancelled)};
  EXPECT_EQ(NextStep(job, seen).job.number, "9");
  EXPECT_THAT(ToCancel(seen, "*"), ElementsAre("10"));
  EXPECT_THAT(ToCancel(seen, "10"), ElementsAre("9"));
  EXPECT_THAT(ToCancel(seen, ""), ElementsAre("9", "10"));
  EXPECT_THAT(ToCancel({Seen("9", Phase::kCompleting)}, ""), IsEmpty());
}

TEST(NextStep, NotesWhatHasChanged) {
  v1::StoredJob job = JobIn(Job::STATE_QUEUED, Allocation::STATE_PENDING, "9");
  ClusterJob seen = Seen("9", Phase::kPending);
  seen.word = "PENDING";
  seen.reason = "Priority";
  ASSERT_EQ(NextStep(job, {seen}).kind, AllocationKind::kNote);
  NoteClusterJob(seen, job.mutable_job()->mutable_allocation());
  EXPECT_EQ(job.job().allocation().text(), "PENDING (Priority)");
  EXPECT_EQ(NextStep(job, {seen}).kind, AllocationKind::kWait);
  seen.phase = Phase::kRunning;
  seen.end_unix_nanos = 5;
  NoteClusterJob(seen, job.mutable_job()->mutable_allocation());
  EXPECT_EQ(job.job().allocation().state(), Allocation::STATE_RUNNING);
  EXPECT_EQ(job.job().allocation().end_unix_nanos(), 5);
  seen.phase = Phase::kCompleting;
  seen.end_unix_nanos = 3;
  NoteClusterJob(seen, job.mutable_job()->mutable_allocation());
  EXPECT_EQ(job.job().allocation().state(), Allocation::STATE_RUNNING) << "until it has ended";
  EXPECT_EQ(job.job().allocation().end_unix_nanos(), 5) << "the limit, not when it was cancelled";
}

TEST(NextStep, AnEndHasItsConsequence) {
  const auto next = [](Job::State state, End end) {
    return NextStep(JobIn(state, Allocation::STATE_RUNNING, "9"), {Seen("9", Phase::kEnded, end)})
        .kind;
  };
  EXPECT_EQ(next(Job::STATE_RUNNING, End::kCancelled), AllocationKind::kCancelled);
  EXPECT_EQ(next(Job::STATE_QUEUED, End::kCancelled), AllocationKind::kCancelled);
  EXPECT_EQ(next(Job::STATE_RUNNING, End::kTaken), AllocationKind::kLost);
  EXPECT_EQ(next(Job::STATE_QUEUED, End::kTaken), AllocationKind::kLost);
  EXPECT_EQ(next(Job::STATE_RUNNING, End::kFinished), AllocationKind::kLost);
  EXPECT_EQ(next(Job::STATE_QUEUED, End::kFinished), AllocationKind::kRefused)
      << "no agent came up";
}

TEST(NextStep, AJobThatTheListingHasLostIsAskedFor) {
  const v1::StoredJob job = JobIn(Job::STATE_RUNNING, Allocation::STATE_RUNNING, "9");
  EXPECT_EQ(NextStep(job, {}).kind, AllocationKind::kFind);
  EXPECT_EQ(NextStep(job, {Seen("8", Phase::kRunning)}).kind, AllocationKind::kFind);
  EXPECT_EQ(AfterFind(job, std::nullopt).kind, AllocationKind::kLost);
  EXPECT_EQ(AfterFind(job, Seen("9", Phase::kEnded, End::kCancelled)).kind,
            AllocationKind::kCancelled);
  EXPECT_EQ(AfterFind(job, Seen("9", Phase::kRunning)).kind, AllocationKind::kWait);
}

TEST(Allocation, EndsInTheSameChangeInWhichItsJobStopsUsingIt) {
  for (const Trigger trigger : {Trigger::kNodeGone, Trigger::kGaveUp}) {
    v1::StoredJob job = JobIn(Job::STATE_RESTARTING, Allocation::STATE_RUNNING, "9");
    std::vector<v1::JobEvent> events;
    ASSERT_TRUE(Apply(trigger, {}, kAllocationNow, &job, &events).ok());
    EXPECT_EQ(job.job().allocation().state(), Allocation::STATE_ENDING) << TriggerName(trigger);
  }
  v1::StoredJob job = JobIn(Job::STATE_RUNNING, Allocation::STATE_RUNNING, "9");
  std::vector<v1::JobEvent> events;
  ASSERT_TRUE(Apply(Trigger::kRankLost, {}, kAllocationNow, &job, &events).ok());
  EXPECT_EQ(job.job().allocation().state(), Allocation::STATE_RUNNING) << "it restarts there";
}

TEST(LoseMachines, OnceTheAllocationIsOverAndNotForRanksThatEnded) {
  std::vector<RankView> ranks(2);
  for (RankView& rank : ranks) {
    rank.node = RankView::Node::kReady;
    rank.worker.emplace();
    rank.worker->set_state(v1::WorkerObservation::STATE_RUNNING);
  }
  ranks[1].worker->set_state(v1::WorkerObservation::STATE_EXITED);
  LoseMachines(JobIn(Job::STATE_RUNNING, Allocation::STATE_RUNNING).job(), &ranks);
  EXPECT_EQ(ranks[0].node, RankView::Node::kReady);
  LoseMachines(JobIn(Job::STATE_RUNNING, Allocation::STATE_ENDING).job(), &ranks);
  EXPECT_EQ(ranks[0].node, RankView::Node::kLost);
  EXPECT_EQ(ranks[1].node, RankView::Node::kReady);
}

TEST(EndsSoon, WithinTheStopGrace) {
  v1::StoredJob job = JobIn(Job::STATE_RUNNING, Allocation::STATE_RUNNING, "9");
  EXPECT_FALSE(EndsSoon(job.job(), kAllocationNow)) << "without a limit";
  job.mutable_job()->mutable_allocation()->set_end_unix_nanos(absl::ToUnixNanos(kAllocationNow));
  EXPECT_FALSE(EndsSoon(job.job(), kAllocationNow - absl::Seconds(31)));
  EXPECT_TRUE(EndsSoon(job.job(), kAllocationNow - absl::Seconds(30)));
  EXPECT_TRUE(EndsSoon(job.job(), kAllocationNow + absl::Hours(1)));
}

}  // namespace
}  // namespace nsa::server
