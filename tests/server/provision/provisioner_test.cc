// The provisioner with the coordinator's parts and a cluster manager that the test plays.
#include "server/provision/provisioner.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using v1::Allocation;
using Phase = ClusterJob::Phase;
using End = ClusterJob::End;

class FakeCluster : public Cluster {
 public:
  absl::StatusOr<std::string> Submit(const v1::StoredJob& job) override {
    ++asked;
    if (!refusal.ok()) return refusal;
    const std::string number = absl::StrCat(100 + jobs.size());
    jobs.push_back({.number = number,
                    .name = ClusterName(job.job().allocation().id()),
                    .phase = Phase::kPending,
                    .word = "PENDING",
                    .reason = "Resources"});
    if (!lost_answer.ok()) return lost_answer;
    return number;
  }
  absl::StatusOr<std::vector<ClusterJob>> List() override {
    if (!silence.ok()) return silence;
    return jobs;
  }
  absl::StatusOr<std::optional<ClusterJob>> Find(const std::string& /*number*/) override {
    return found;
  }
  absl::Status Cancel(const std::vector<std::string>& numbers) override {
    if (!no_cancel.ok()) return no_cancel;
    for (const std::string& number : numbers) {
      cancelled.push_back(number);
      for (ClusterJob& job : jobs) {
        if (job.number == number) job.phase = Phase::kCompleting;
      }
    }
    return absl::OkStatus();
  }

  void Set(Phase phase, End end = End::kNone, const std::string& word = "RUNNING") {
    jobs.back().phase = phase;
    jobs.back().end = end;
    jobs.back().word = word;
    jobs.back().reason = "None";
  }

  std::vector<ClusterJob> jobs;
  std::vector<std::string> cancelled;
  int asked = 0;
  absl::Status refusal, lost_answer, silence, no_cancel;
  std::optional<ClusterJob> found;
};

class ProvisionerTest : public Harness {
 protected:
  ProvisionerTest() {
    EXPECT_OK(TakeSharedFolder(folder_ / "shared").status());
    Begin();
  }

  // As after a start of the coordinator.
  void Begin() {
    provisioner_.reset();
    Restart();
    provisioner_ =
        std::make_unique<Provisioner>(Provisioner::Parts{.name = "slurm",
                                                         .shared_dir = folder_ / "shared",
                                                         .cluster = cluster_,
                                                         .store = store(),
                                                         .access = *life().access,
                                                         .fleet = life().fleet,
                                                         .clock = clock(),
                                                         .changed = [] {}});
  }
  void Provision() {
    clock().Advance(absl::Seconds(11));
    provisioner_->Pass();
  }
  std::string SubmitJob(const std::string& name = "job") {
    v1::JobSpec spec = Spec(name, 2);
    spec.mutable_resources()->set_nodes(2);
    spec.mutable_resources()->set_provisioner("slurm");
    return Submit(spec);
  }
  Allocation AllocationOf(const std::string& id) { return Get(id).allocation(); }
  std::filesystem::path Folder(const std::string& id) {
    return folder_ / "shared" / AllocationOf(id).id();
  }
  std::vector<std::string> Shared() { return *ListAllocations(folder_ / "shared"); }

  // The agents of the job's allocation.
  std::vector<FakeAgent> Agents(const std::string& id) {
    std::vector<FakeAgent> agents;
    for (int i = 0; i < 2; ++i) {
      agents.push_back(MakeAgent(AllocatedNode(AllocationOf(id), i), 1));
      agents.back().node().set_allocation(AllocationOf(id).id());
      agents.back().node().set_rank_address("10.0.0.2");
    }
    return agents;
  }
  // A job that runs on its allocation.
  std::string RunJob(std::vector<FakeAgent>* agents) {
    const std::string id = SubmitJob();
    Provision();
    cluster_.Set(Phase::kRunning);
    Provision();
    *agents = Agents(id);
    RunUntil(id, v1::Job::STATE_RUNNING, {&agents->at(0), &agents->at(1)});
    return id;
  }

  FakeCluster cluster_;
  std::unique_ptr<Provisioner> provisioner_;
};

TEST_F(ProvisionerTest, AJobGetsMachinesTrainsAndGivesThemBack) {
  const std::string id = SubmitJob();
  Look();
  EXPECT_EQ(Get(id).reason(), "WAITING_FOR_ALLOCATION");
  Provision();
  EXPECT_EQ(AllocationOf(id).state(), Allocation::STATE_PENDING);
  EXPECT_EQ(AllocationOf(id).cluster_id(), "100");
  Provision();
  Look();
  EXPECT_EQ(Get(id).message(), "waiting for slurm: PENDING (Resources)");

  cluster_.Set(Phase::kRunning);
  Provision();
  Provision();
  Look();
  EXPECT_THAT(Get(id).message(), HasSubstr("0 of 2 are ready"));
  for (const char* name : {"agent-0.token", "agent-1.token"}) {
    struct stat info {};
    ASSERT_EQ(stat((Folder(id) / name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777, 0600U);
  }
  std::vector<FakeAgent> agents = Agents(id);
  Round({&agents[0]});
  EXPECT_THAT(Get(id).message(), HasSubstr("1 of 2"));
  RunUntil(id, v1::Job::STATE_RUNNING, {&agents[0], &agents[1]});
  for (FakeAgent& agent : agents) agent.Train(20);
  RunUntil(id, v1::Job::STATE_SUCCEEDED, {&agents[0], &agents[1]});
  EXPECT_EQ(AllocationOf(id).state(), Allocation::STATE_ENDING);
  EXPECT_THAT(agents[0].Beat(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("end this agent")));

  Provision();
  EXPECT_THAT(cluster_.cancelled, ElementsAre("100"));
  EXPECT_THAT(Shared(), SizeIs(1)) << "until nothing runs there";
  cluster_.Set(Phase::kEnded, End::kCancelled);
  Provision();
  EXPECT_EQ(AllocationOf(id).state(), Allocation::STATE_ENDED);
  EXPECT_THAT(Shared(), IsEmpty());
  EXPECT_THAT(life().access->List("", 100), IsEmpty());
  EXPECT_THAT(life().fleet.Nodes(), IsEmpty());
  EXPECT_EQ(cluster_.asked, 1);
  EXPECT_THAT(History(id), HasSubstr("ALLOCATION_REQUESTED ALLOCATION_GRANTED PLACED"));
  EXPECT_THAT(History(id), HasSubstr("COMPLETED ALLOCATION_RETURNED"));
}

TEST_F(ProvisionerTest, NoOtherJobIsPlacedOnTheMachinesAndThisOneOnNoOther) {
  const std::string id = SubmitJob();
  Provision();
  cluster_.Set(Phase::kRunning);
  Provision();
  std::vector<FakeAgent> agents = Agents(id);
  const std::string other = Submit(Spec("other", 1));
  FakeAgent common = MakeAgent("common", 4);
  common.node().set_rank_address("10.0.0.3");
  Round({&agents[0], &common});
  Round({&agents[0], &common});
  EXPECT_EQ(Get(id).state(), v1::Job::STATE_QUEUED);
  ASSERT_EQ((*store().Find(other))->placements_size(), 1);
  EXPECT_EQ((*store().Find(other))->placements(0).node(), "common");
}

TEST_F(ProvisionerTest, AnAnswerThatWasLostIsFoundByTheName) {
  cluster_.lost_answer = absl::UnavailableError("sbatch was killed");
  const std::string id = SubmitJob();
  Provision();
  EXPECT_EQ(AllocationOf(id).state(), Allocation::STATE_REQUESTED);
  Begin();
  Provision();
  EXPECT_EQ(AllocationOf(id).cluster_id(), "100");
  EXPECT_EQ(cluster_.asked, 1);
}

TEST_F(ProvisionerTest, OfTwoRequestsOneIsCancelled) {
  const std::string id = SubmitJob();
  Provision();
  ClusterJob second = cluster_.jobs.back();
  second.number = "105";
  cluster_.jobs.push_back(second);
  Provision();
  EXPECT_THAT(cluster_.cancelled, ElementsAre("105"));
  EXPECT_EQ(AllocationOf(id).cluster_id(), "100");
}

TEST_F(ProvisionerTest, WhileTheClusterDoesNotAnswerNothingIsDecided) {
  std::vector<FakeAgent> agents;
  const std::string id = RunJob(&agents);
  cluster_.silence = absl::UnavailableError("squeue: Unable to contact slurm controller");
  for (int i = 0; i < 100; ++i) Provision();
  EXPECT_EQ(AllocationOf(id).state(), Allocation::STATE_RUNNING);
  EXPECT_EQ(cluster_.asked, 1);
  EXPECT_THAT(cluster_.cancelled, IsEmpty());
}

TEST_F(ProvisionerTest, AJobThatWaitsSaysThatTheClusterCannotBeAsked) {
  cluster_.silence = absl::UnavailableError("squeue: Unable to contact slurm controller");
  const std::string id = SubmitJob();
  Provision();
  Look();
  EXPECT_EQ(Get(id).message(),
            "waiting for slurm, which cannot be asked (its queue: squeue: Unable to contact slurm "
            "controller); it is asked again");
  cluster_.silence = absl::OkStatus();
  Provision();
  Provision();
  Look();
  EXPECT_EQ(Get(id).message(), "waiting for slurm: PENDING (Resources)");
  cluster_.silence =
      absl::UnavailableError("/opt/slurm/squeue cannot be started (No such file or directory)");
  Provision();
  Look();
  EXPECT_THAT(Get(id).message(), HasSubstr("(its queue: /opt/slurm/squeue cannot be started"))
      << "also one that has been asked for";
}

TEST_F(ProvisionerTest, ARefusalFailsTheJobWithWhatTheClusterSaid) {
  cluster_.refusal = absl::InvalidArgumentError("sbatch: Invalid partition name specified");
  const std::string id = SubmitJob();
  Provision();
  const v1::Job job = Get(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
  EXPECT_EQ(job.reason(), "ALLOCATION_REFUSED");
  EXPECT_THAT(job.message(), StartsWith("slurm refuses it: sbatch: Invalid"));
  Provision();
  EXPECT_THAT(Shared(), IsEmpty());
  cluster_.refusal = absl::OkStatus();
  ASSERT_OK(Resume(id));
  Provision();
  EXPECT_EQ(AllocationOf(id).state(), Allocation::STATE_PENDING);
}

TEST_F(ProvisionerTest, AScriptThatEndsBeforeItsAgentsFailsTheJobWithItsWords) {
  const std::string id = SubmitJob();
  Provision();
  std::ofstream(Folder(id) / "agent-0.log") << "agent.sh: /opt/nsa-agent: not found\n";
  cluster_.Set(Phase::kEnded, End::kFinished, "FAILED");
  Provision();
  EXPECT_EQ(Get(id).state(), v1::Job::STATE_FAILED);
  EXPECT_THAT(Get(id).message(), HasSubstr("/opt/nsa-agent: not found"));
}

TEST_F(ProvisionerTest, ALostAllocationMovesTheJobToAnotherAndCountsAsNoRestart) {
  std::vector<FakeAgent> agents;
  const std::string id = RunJob(&agents);
  const std::string first = AllocationOf(id).id();
  for (FakeAgent& agent : agents) agent.Train(5);
  Round({&agents[0], &agents[1]});
  cluster_.Set(Phase::kEnded, End::kTaken, "NODE_FAIL");
  Provision();
  Pass(absl::Seconds(3));
  EXPECT_EQ(StateName(Get(id).state()), "QUEUED");
  Provision();
  Provision();
  EXPECT_EQ(AllocationOf(id).state(), Allocation::STATE_PENDING);
  EXPECT_NE(AllocationOf(id).id(), first);
  EXPECT_THAT(Shared(), ElementsAre(AllocationOf(id).id()));
  EXPECT_THAT(History(id), HasSubstr("ALLOCATION_LOST"));
  EXPECT_THAT(History(id), HasSubstr("NODE_LOST"));
  EXPECT_THAT((*store().Find(id))->counted_restart_unix_nanos(), IsEmpty());
}

TEST_F(ProvisionerTest, AnAllocationThatEndsSoonIsLeftWithACheckpoint) {
  std::vector<FakeAgent> agents;
  const std::string id = RunJob(&agents);
  cluster_.jobs.back().end_unix_nanos = absl::ToUnixNanos(clock().Wall() + absl::Seconds(42));
  Provision();
  agents[0].Train(5);
  agents[1].Train(5);
  Round({&agents[0], &agents[1]});
  ASSERT_EQ(agents[0].Find(0)->assignment.stop().mode(), v1::STOP_MODE_UNSPECIFIED);
  clock().Advance(absl::Seconds(5));
  ASSERT_OK(agents[0].Beat());
  EXPECT_EQ(agents[0].Find(0)->assignment.stop().mode(), v1::STOP_MODE_GRACEFUL);
}

TEST_F(ProvisionerTest, WhoeverCancelsTheMachinesStopsTheJob) {
  std::vector<FakeAgent> agents;
  const std::string id = RunJob(&agents);
  cluster_.Set(Phase::kEnded, End::kCancelled, "CANCELLED");
  Provision();
  Pass(absl::Seconds(2));
  EXPECT_EQ(StateName(Get(id).state()), "STOPPED");
  EXPECT_EQ(Get(id).reason(), "ALLOCATION_CANCELLED");
  EXPECT_THAT(Get(id).message(), HasSubstr("slurm job 100 was cancelled"));
  Provision();
  ASSERT_OK(Resume(id));
  Provision();
  EXPECT_EQ(cluster_.asked, 2);
}

TEST_F(ProvisionerTest, AJobThatIsStoppedWhileItWaitsGivesItsRequestBack) {
  const std::string id = SubmitJob();
  Provision();
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  Provision();
  EXPECT_THAT(cluster_.cancelled, ElementsAre("100"));
  cluster_.Set(Phase::kEnded, End::kCancelled);
  Provision();
  EXPECT_THAT(Shared(), IsEmpty());
}

TEST_F(ProvisionerTest, AProblemThatLastsIsLoggedOnce) {
  const std::string id = SubmitJob();
  Provision();
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  cluster_.no_cancel = absl::InvalidArgumentError("scancel: access denied");
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  for (int i = 0; i < 5; ++i) Provision();
  const std::string first = log.str();
  cluster_.no_cancel = absl::OkStatus();
  Provision();
  spdlog::set_default_logger(before);
  EXPECT_THAT(first, HasSubstr("scancel: access denied"));
  EXPECT_EQ(std::ranges::count(first, '\n'), 1) << first;
  EXPECT_THAT(cluster_.cancelled, ElementsAre("100"));
}

TEST_F(ProvisionerTest, MachinesOfADeletedJobAreGivenBack) {
  const std::string id = SubmitJob();
  Provision();
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  v1::DeleteJobRequest request;
  request.set_job(id);
  ASSERT_OK(control().Delete(request, "here").status());
  Begin();
  Provision();
  EXPECT_THAT(cluster_.cancelled, ElementsAre("100"));
  cluster_.Set(Phase::kEnded, End::kCancelled);
  Provision();
  EXPECT_THAT(Shared(), IsEmpty());
}

TEST_F(ProvisionerTest, ARequestThatMayBeOnItsWayIsWaitedFor) {
  cluster_.refusal = absl::UnavailableError("sbatch: Socket timed out");
  const std::string id = SubmitJob();
  Provision();
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  Provision();
  EXPECT_THAT(Shared(), SizeIs(1));
  Provision();
  Provision();
  EXPECT_THAT(Shared(), IsEmpty());
}

TEST_F(ProvisionerTest, OtherFoldersInTheSharedFolderAreLeftAlone) {
  const std::filesystem::path other = folder_ / "shared" / "lost+found";
  std::filesystem::create_directories(other);
  std::filesystem::create_directories(folder_ / "shared" / "aabcdefghijkl");
  Provision();
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "shared" / "aabcdefghijkl"))
      << "left by a coordinator that was killed before it asked";
}

TEST_F(ProvisionerTest, AnAgentSaysForWhomItWorksAndMustBeOneOfItsMachines) {
  std::vector<FakeAgent> agents;
  const std::string id = RunJob(&agents);
  FakeAgent stranger = MakeAgent("stranger", 4);
  stranger.node().set_allocation(AllocationOf(id).id());
  EXPECT_THAT(stranger.Beat(), StatusIs(absl::StatusCode::kPermissionDenied));
  stranger.node().set_allocation("aaaaaaaaaaaaa");
  EXPECT_THAT(stranger.Beat(), StatusIs(absl::StatusCode::kNotFound));
}

TEST(SharedFolder, IsRefusedWhenOthersMayOpenItOrAnotherCoordinatorUsesIt) {
  const TempDir folder;
  const std::filesystem::path shared = folder / "shared";
  const auto lock = TakeSharedFolder(shared);
  ASSERT_OK(lock);
  chmod(shared.c_str(), 0755);
  EXPECT_THAT(TakeSharedFolder(shared),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod 700")));
}

}  // namespace
}  // namespace nsa::server
