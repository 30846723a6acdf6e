#include "server/act/desired.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <utility>

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A job whose ranks were placed on these machines, in order.
JobPtr RunningOn(const std::vector<std::string>& machines) {
  auto job = std::make_shared<v1::StoredJob>();
  job->mutable_job()->set_id("j1");
  job->mutable_job()->set_generation(3);
  job->mutable_job()->set_state(v1::Job::STATE_STARTING);
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    v1::RankPlacement* place = job->add_placements();
    place->set_rank(static_cast<int32_t>(rank));
    place->set_node(machines[rank]);
  }
  return job;
}

// "rank 0: address of 1" for each rank that should run on the machine.
std::vector<std::string> Texts(const std::string& machine, const JobPtr& job,
                               const std::map<std::pair<std::string, int>, std::string>& told,
                               absl::Time now = absl::UnixEpoch()) {
  const auto worker_of = [&](const std::string& node, const std::string& id, int64_t generation,
                             int32_t rank) -> std::optional<v1::WorkerObservation> {
    EXPECT_EQ(id, "j1");
    EXPECT_EQ(generation, 3) << "an address of an earlier start leads nowhere";
    const auto found = told.find({node, rank});
    if (found == told.end()) return std::nullopt;
    v1::WorkerObservation worker;
    worker.set_rank_address(found->second);
    return worker;
  };
  std::vector<std::string> texts;
  for (const v1::WorkerAssignment& assignment : DesiredOn(machine, {job}, worker_of, now)) {
    std::string& text = texts.emplace_back("rank " + std::to_string(assignment.rank()));
    if (assignment.several_machines()) text += ", several machines";
    if (!assignment.next_rank_address().empty()) text += ": " + assignment.next_rank_address();
    if (assignment.stop().mode() == v1::STOP_MODE_GRACEFUL) text += ", stop";
  }
  return texts;
}

TEST(Desired, ARankLearnsTheAddressOfTheNextRankIfThatIsOnAnotherMachine) {
  const JobPtr job = RunningOn({"a", "a", "b"});
  EXPECT_THAT(Texts("a", job, {}),
              ElementsAre("rank 0, several machines", "rank 1, several machines"))
      << "no rank has reported its address yet";
  const std::map<std::pair<std::string, int>, std::string> told = {
      {{"a", 0}, "zero"}, {{"a", 1}, "one"}, {{"b", 2}, "two"}};
  EXPECT_THAT(Texts("a", job, told),
              ElementsAre("rank 0, several machines", "rank 1, several machines: two"));
  EXPECT_THAT(Texts("b", job, told), ElementsAre("rank 2, several machines: zero"));
}

TEST(Desired, ARankLearnsTheUnixUserOfItsJob) {
  const JobPtr job = RunningOn({"a"});
  auto owned = std::make_shared<v1::StoredJob>(*job);
  owned->mutable_job()->set_unix_user("ada");
  const auto nobody = [](auto&&...) { return std::nullopt; };
  EXPECT_EQ(DesiredOn("a", {owned}, nobody, absl::UnixEpoch()).at(0).unix_user(), "ada");
  EXPECT_EQ(DesiredOn("a", {job}, nobody, absl::UnixEpoch()).at(0).unix_user(), "");
}

TEST(Desired, OnlyForAnOlderAgentIsThePublishedCheckpointInTheSpec) {
  auto job = std::make_shared<v1::StoredJob>(*RunningOn({"a"}));
  v1::JobSpec* spec = job->mutable_job()->mutable_spec();
  spec->mutable_train()->set_out_dir("/out");
  spec->mutable_restart()->set_resume("never");
  const auto nobody = [](auto&&...) { return std::nullopt; };
  const auto assignment = [&] { return DesiredOn("a", {job}, nobody, absl::UnixEpoch()).at(0); };
  v1::WorkerAssignment first = assignment();
  MakeForOlderAgent(&first);
  EXPECT_EQ(first.spec().restart().resume(), "never") << "nothing was published";

  job->mutable_job()->mutable_progress()->set_checkpoint_step(7);
  v1::WorkerAssignment again = assignment();
  EXPECT_EQ(again.resume_from_step(), 7);
  EXPECT_EQ(again.spec().restart().resume(), "never");
  EXPECT_EQ(again.submitted_resume(), "");
  MakeForOlderAgent(&again);
  EXPECT_EQ(again.spec().restart().resume(), "/out/checkpoints/step-00000007");
  EXPECT_EQ(again.submitted_resume(), "never");
}

TEST(Desired, NoAddressOfAJobOnOneMachineIsPassedOn) {
  EXPECT_THAT(Texts("a", RunningOn({"a", "a"}), {{{"a", 0}, "zero"}, {{"a", 1}, "one"}}),
              ElementsAre("rank 0", "rank 1"));
  EXPECT_THAT(Texts("b", RunningOn({"a", "a"}), {}), IsEmpty());
}

}  // namespace
}  // namespace nsa::server
