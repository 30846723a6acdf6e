// What the agent does while the coordinator answers. tests/faults/agent_faults_test.cc tests it
// without one.
#include <fcntl.h>
#include <sys/stat.h>

#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "common/run/rank_address.h"
#include "tests/testing/agent_fixture.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/paths.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using AgentTest = AgentFixture;

TEST_F(AgentTest, RunsAWorkerToItsEndAndReportsEveryRecordAndLogByteOnce) {
  StartAgent();
  v1::WorkerAssignment assignment = Assignment(kJob, 40, {{"log_bytes", "1234"}});
  assignment.mutable_spec()->mutable_train()->set_save_every(15);
  coordinator_.Want(assignment);
  ASSERT_TRUE(WaitForEnd(kJob));
  const v1::WorkerObservation end = coordinator_.Observation(kJob);
  EXPECT_EQ(end.exit_code(), 0);
  EXPECT_EQ(end.exit_signal(), 0);
  EXPECT_EQ(end.start_error(), "");
  EXPECT_FALSE(end.killed_by_agent());
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(40));
  const auto records = coordinator_.Records(kJob);
  EXPECT_TRUE(records.front().has_started());
  EXPECT_EQ(records.back().finished().outcome(), v1::OUTCOME_COMPLETED);
  EXPECT_EQ(coordinator_.Log(kJob).size(), 40U * 1234U);
  EXPECT_EQ(coordinator_.Log(kJob), *ReadWholeFile(Dir(kJob).log()));
}

TEST_F(AgentTest, ReportsStepsTwiceASecondAndWhatPeopleWaitForAtOnce) {
  StartAgent();
  const absl::Duration start = RealClock().Monotonic();
  coordinator_.Want(Assignment(kJob, 100, {{"step_ms", "20"}}));
  ASSERT_TRUE(WaitForEnd(kJob));
  const int64_t for_steps = coordinator_.RecordReports();
  const double seconds = absl::ToDoubleSeconds(RealClock().Monotonic() - start);
  EXPECT_LE(for_steps, seconds / 0.5 + 5) << "a question, start, end, and one each half second";

  v1::WorkerAssignment assignment = Assignment({"job-b", 1, 0}, 1'000'000, {{"step_ms", "20"}});
  assignment.mutable_spec()->mutable_train()->set_eval_every(1);
  RunWorker(assignment);
  // Three reports in less time than there is between two of steps, as soon as nothing holds this
  // process up.
  absl::Duration since = RealClock().Monotonic();
  int64_t before = coordinator_.RecordReports();
  EXPECT_TRUE(Eventually([&] {
    const absl::Duration now = RealClock().Monotonic();
    const int64_t reports = coordinator_.RecordReports();
    if (now - since < absl::Milliseconds(450)) return reports - before >= 3;
    since = now;
    before = reports;
    return false;
  }));
}

TEST_F(AgentTest, JoinsWithItsTokenAndSpeaksWithASecretThatOnlyItHas) {
  const std::filesystem::path file = folder_ / "join";
  std::ofstream(file) << "a-join-token-of-this-node\n";
  chmod(file.c_str(), 0600);
  std::ofstream(folder_ / "agent.yaml", std::ios::app)
      << "join_token_file: " << file.string() << "\n";
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  const std::vector<v1::JoinRequest> joins = coordinator_.Joins();
  ASSERT_EQ(joins.size(), 1u);
  EXPECT_EQ(joins[0].node(), "test-node");
  EXPECT_EQ(joins[0].join_token(), "a-join-token-of-this-node");
  EXPECT_EQ(joins[0].secret_sha256().size(), 32u);
  const std::filesystem::path secret = std::filesystem::path(StateDir()) / "node.secret";
  struct stat info {};
  ASSERT_EQ(stat(secret.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const std::string text = *ReadWholeFile(secret);
  EXPECT_THAT(coordinator_.Secrets(),
              ::testing::ElementsAre("Bearer " + text.substr(0, text.size() - 1)));
  EXPECT_THAT(AgentLog(), Not(HasSubstr(text.substr(0, 16)))) << "secrets stay out of the log";
  EXPECT_THAT(AgentLog(), Not(HasSubstr("a-join-token")));

  coordinator_.ForgetSecrets(true);
  ASSERT_TRUE(Eventually([&] { return coordinator_.Joins().size() > 1; }))
      << "an agent whose secret is not known joins again";
  coordinator_.ForgetSecrets(false);
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Joins().back().secret_sha256(), joins[0].secret_sha256());
}

TEST_F(AgentTest, WarnsOfACertificateThatEndsSoonAndRefusesOneThatHasEnded) {
  ASSERT_TRUE(MakeCertificates(folder_.path()));
  const auto use = [&](const std::string& name) {
    std::ofstream(folder_ / "agent.yaml")
        << "node_name: test-node\ntls: {certificate_file: " << (folder_ / (name + ".crt")).string()
        << ", private_key_file: " << (folder_ / (name + ".key")).string()
        << ", client_ca_file: " << (folder_ / "ca.crt").string() << "}\n";
  };
  use("client");
  StartAgent();
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(
        AgentLog(), "tls.certificate_file: " + (folder_ / "client.crt").string() + " ends on ");
  })) << AgentLog();
  KillAgent();
  use("ended");
  StartAgent();
  EXPECT_EQ(AwaitAgent().code, 2);
  EXPECT_THAT(AgentLog(), AllOf(HasSubstr("ended.crt ended on "), HasSubstr("renew-tls")));
}

// An interface may come up later than the agent: systemd starts it again after 1, not after 2.
TEST_F(AgentTest, AnAddressThatIsNotThereYetIsNoMistakeInTheConfiguration) {
  std::ofstream(folder_ / "agent.yaml", std::ios::app) << "rank_address: 192.0.2.1\n";
  StartAgent();
  EXPECT_EQ(AwaitAgent().code, 1);
  EXPECT_THAT(AgentLog(), HasSubstr("rank_address: 192.0.2.1 (none of this machine's interfaces"));
  std::ofstream(folder_ / "agent.yaml") << "cpu_slots: -1\n";
  StartAgent();
  EXPECT_EQ(AwaitAgent().code, 2);
}

TEST_F(AgentTest, TellsWhatTheMachineHas) {
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  const v1::NodeInfo node = coordinator_.Node();
  EXPECT_EQ(node.name(), "test-node");
  EXPECT_EQ(node.cpu_slots(), 3);
  EXPECT_GE(node.cores(), 1);
  EXPECT_GT(node.memory_bytes(), int64_t{1} << 28);
  EXPECT_GT(node.free_memory_bytes(), 0);
  EXPECT_LE(node.free_memory_bytes(), node.memory_bytes());
  EXPECT_NE(node.agent_version(), "");
  const auto heard = [this] { return coordinator_.Node(); };
  EXPECT_TRUE(Eventually([&] { return heard().worker_hash().size() == 16; }));
  EXPECT_EQ(heard().nccl_version(), "");
  const absl::Duration off = absl::Now() - absl::FromUnixNanos(heard().unix_nanos());
  EXPECT_LT(absl::AbsDuration(off), absl::Minutes(1)) << "this machine's clock";
}

TEST_F(AgentTest, CarriesTheAddressesOfRanksOnSeveralMachines) {
  std::ofstream(folder_ / "agent.yaml", std::ios::app)
      << "rank_address: 127.0.0.1\nrank_ports: 29500-29509\n";
  StartAgent();
  v1::WorkerAssignment assignment = Assignment(kJob, 1000000);
  assignment.set_world_size(2);
  assignment.set_several_machines(true);
  RunWorker(assignment);
  EXPECT_EQ(coordinator_.Node().rank_address(), "127.0.0.1");
  v1::WorkerLaunch launch;
  ASSERT_TRUE(launch.ParseFromString(*ReadWholeFile(Dir(kJob).launch())));
  EXPECT_EQ(launch.rank_address(), "127.0.0.1");
  EXPECT_EQ(launch.rank_ports(), "29500-29509");
  EXPECT_EQ(launch.rendezvous_dir(), Dir(kJob).rendezvous().string());

  // As the worker does it.
  std::filesystem::create_directories(MeetingFolder(Dir(kJob).rendezvous(), 1));
  const std::string own = "127.0.0.1 29500 000102030405060708090a0b0c0d0e0f\n";
  EXPECT_EQ(coordinator_.Observation(kJob).rank_address(), "");
  ASSERT_OK(WriteFileAtomically(RankAddressFile(MeetingFolder(Dir(kJob).rendezvous(), 1), 0), own));
  EXPECT_TRUE(coordinator_.WaitFor(
      [&] { return coordinator_.ObservationLocked(kJob).rank_address() == own; }));

  const std::filesystem::path next = RankAddressFile(MeetingFolder(Dir(kJob).rendezvous(), 1), 1);
  assignment.set_next_rank_address("nowhere");
  coordinator_.Want(assignment);
  EXPECT_TRUE(
      Eventually([&] { return AgentLog().find("address is not one") != std::string::npos; }));
  EXPECT_FALSE(std::filesystem::exists(next));
  const std::string other = "10.0.0.2 29501 0f0e0d0c0b0a09080706050403020100\n";
  assignment.set_next_rank_address(other);
  coordinator_.Want(assignment);
  EXPECT_TRUE(Eventually([&] { return ReadWholeFile(next).value_or("") == other; }));
}

TEST_F(AgentTest, KeepsTheAddressesOfRanksOnOneMachineToItself) {
  StartAgent();
  RunWorker(Assignment(kJob, 1000000));
  std::filesystem::create_directories(MeetingFolder(Dir(kJob).rendezvous(), 1));
  ASSERT_OK(WriteFileAtomically(RankAddressFile(MeetingFolder(Dir(kJob).rendezvous(), 1), 0),
                                "127.0.0.1 29500 000102030405060708090a0b0c0d0e0f\n"));
  const int64_t step = coordinator_.Observation(kJob).step();
  ASSERT_TRUE(
      coordinator_.WaitFor([&] { return coordinator_.ObservationLocked(kJob).step() > step; }));
  EXPECT_EQ(coordinator_.Observation(kJob).rank_address(), "");
}

TEST_F(AgentTest, ShowsStepAndPhaseOfARunningWorker) {
  StartAgent();
  RunWorker(Assignment(kJob, 1000000));
  ASSERT_TRUE(
      coordinator_.WaitFor([&] { return coordinator_.ObservationLocked(kJob).step() > 3; }));
  const v1::WorkerObservation now = coordinator_.Observation(kJob);
  EXPECT_EQ(now.phase(), "forward");
  EXPECT_THAT(now.place(), ::testing::StartsWith("forward"));
  EXPECT_LT(now.seconds_since_progress(), 5);
  EXPECT_THAT(now.process_state(), ::testing::AnyOf("R", "S"));
}

// Hang detection counts from its start, until it has a status page.
TEST_F(AgentTest, AWorkerThatDoesNotGetToItsStatusPageMakesNoProgress) {
  StartAgent();
  coordinator_.Want(Assignment(kJob, 40, {{"stall_start", "1"}}));
  ASSERT_TRUE(coordinator_.WaitFor(
      [&] { return coordinator_.ObservationLocked(kJob).seconds_since_progress() > 1; }));
  const v1::WorkerObservation now = coordinator_.Observation(kJob);
  EXPECT_EQ(now.state(), v1::WorkerObservation::STATE_STARTING);
  EXPECT_EQ(now.phase(), "");
  EXPECT_LT(now.seconds_since_progress(), 60);
}

// With the agent's own score, a worker that leaks memory would be the last process that the kernel
// kills.
TEST_F(AgentTest, TheKernelKillsAWorkerBeforeTheAgent) {
  StartAgent();
  RunWorker(Assignment(kJob, 1000000));
  ASSERT_TRUE(coordinator_.WaitFor([&] {
    int score = 0;
    std::ifstream(
        absl::StrCat("/proc/", coordinator_.ObservationLocked(kJob).pid(), "/oom_score_adj")) >>
        score;
    return score >= 100;
  }));
}

TEST_F(AgentTest, GivesTwoRanksOneRendezvousFolder) {
  StartAgent();
  const Key first = {"gang", 1, 0};
  const Key second = {"gang", 1, 1};
  for (const Key& key : {second, first}) {
    v1::WorkerAssignment assignment = Assignment(key, 5);
    assignment.set_world_size(2);
    coordinator_.Want(assignment);
  }
  EXPECT_TRUE(WaitForEnd(first));
  EXPECT_TRUE(WaitForEnd(second));
  EXPECT_EQ(coordinator_.Observation(second).exit_code(), 0);
}

TEST_F(AgentTest, StopsAtAStepExactly) {
  StartAgent();
  RunWorker(Assignment(kJob, 1000000, {{"step_ms", "2"}, {"hold_at_step", "290"}}));
  coordinator_.SetStop(kJob, v1::STOP_MODE_AT_STEP, 300);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(300));
  EXPECT_EQ(coordinator_.Records(kJob).back().finished().reason(), "STOPPED_AT_STEP");
  EXPECT_EQ(coordinator_.Observation(kJob).exit_code(), 0);
}

// This worker has no control socket, so it can know the stop only from its launch.
TEST_F(AgentTest, AStopThatCameWithTheAssignmentIsInTheLaunch) {
  StartAgent();
  v1::WorkerAssignment at_step = Assignment(kJob, 1000000, {{"deaf", "1"}, {"step_ms", "0"}});
  at_step.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  at_step.mutable_stop()->set_at_step(1);
  coordinator_.Want(at_step);
  const Key second = {"job-b", 1, 0};
  v1::WorkerAssignment graceful = Assignment(second, 1000000, {{"deaf", "1"}});
  graceful.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  coordinator_.Want(graceful);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(1));
  EXPECT_EQ(coordinator_.Records(kJob).back().finished().reason(), "STOPPED_AT_STEP");
  ASSERT_TRUE(WaitForEnd(second));
  EXPECT_EQ(coordinator_.Steps(second), OneTo(1));
  EXPECT_EQ(coordinator_.Records(second).back().finished().reason(), "STOPPED");
}

TEST_F(AgentTest, ALaterStopReplacesTheOneInTheLaunch) {
  StartAgent();
  v1::WorkerAssignment assignment = Assignment(kJob, 1000000,
                                               {
                                                   {"step_ms", "2"},
                                               });
  assignment.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  assignment.mutable_stop()->set_at_step(1000000);
  RunWorker(assignment);
  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Records(kJob).back().finished().reason(), "STOPPED");
}

TEST_F(AgentTest, StopNowKillsAtOnceEvenAWorkerThatIsStopped) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000, {{"ignore_stop", "1"}}));
  ASSERT_OK(SignalProcess(worker, SIGSTOP));
  const absl::Duration start = RealClock().Monotonic();
  coordinator_.SetStop(kJob, v1::STOP_MODE_NOW);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(3));
  const v1::WorkerObservation end = coordinator_.Observation(kJob);
  EXPECT_EQ(end.exit_signal(), SIGKILL);
  EXPECT_TRUE(end.killed_by_agent());
  EXPECT_FALSE(IsAlive(worker));
}

TEST_F(AgentTest, DoesNotStartWhatIsToEndAtOnce) {
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  v1::WorkerAssignment assignment = Assignment(kJob, 5);
  assignment.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
  coordinator_.Want(assignment);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).state(), v1::WorkerObservation::STATE_UNSPECIFIED);
  EXPECT_FALSE(std::filesystem::exists(Dir(kJob).path));
}

TEST_F(AgentTest, ReportsTheSignalOfACrash) {
  StartAgent();
  coordinator_.Want(Assignment(kJob, 100, {{"crash_at_step", "7"}, {"crash_signal", "11"}}));
  ASSERT_TRUE(WaitForEnd(kJob));
  const v1::WorkerObservation end = coordinator_.Observation(kJob);
  EXPECT_EQ(end.exit_signal(), 11);
  EXPECT_EQ(end.exit_code(), -1);
  EXPECT_FALSE(end.killed_by_agent());
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(6));
}

TEST_F(AgentTest, ReportsTheExitCodeOfAFailure) {
  StartAgent();
  coordinator_.Want(
      Assignment(kJob, 100, {{"exit_at_step", "3"}, {"exit_outcome", "failed_final"}}));
  const Key bad = {"job-b", 1, 0};
  coordinator_.Want(Assignment(bad, 100, {{"fail_start", "1"}}));
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Observation(kJob).exit_code(), 3);
  ASSERT_TRUE(WaitForEnd(bad));
  EXPECT_EQ(coordinator_.Observation(bad).exit_code(), 2);
  EXPECT_THAT(coordinator_.Records(bad), ::testing::IsEmpty());
  EXPECT_THAT(coordinator_.Log(bad), HasSubstr("asked to fail"));
}

TEST_F(AgentTest, SaysWhichProgramIsMissing) {
  worker_program_ = "/no/such/nsa-worker";
  StartAgent();
  coordinator_.Want(Assignment(kJob, 100));
  ASSERT_TRUE(WaitForEnd(kJob));
  const v1::WorkerObservation end = coordinator_.Observation(kJob);
  EXPECT_THAT(end.start_error(), HasSubstr("/no/such/nsa-worker"));
  EXPECT_EQ(end.pid(), 0);
}

TEST_F(AgentTest, DoesNotStartAWorkerAgainThatHasEnded) {
  StartAgent();
  coordinator_.Want(Assignment(kJob, 3));
  ASSERT_TRUE(WaitForEnd(kJob));
  const int64_t pid = coordinator_.Observation(kJob).pid();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).pid(), pid);
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(3));
}

TEST_F(AgentTest, EndsAWorkerThatIsNotWantedAndRemovesItsFolder) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  ASSERT_TRUE(std::filesystem::exists(Dir(kJob).path));
  coordinator_.Unwant(kJob);
  EXPECT_TRUE(Eventually([&] { return !IsAlive(worker); }));
  EXPECT_TRUE(Eventually(
      [&] { return std::filesystem::is_empty(std::filesystem::path(StateDir()) / "jobs"); }));
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).state(), v1::WorkerObservation::STATE_UNSPECIFIED);
}

TEST_F(AgentTest, SaysExitedOnlyWhenEveryRecordWasAccepted) {
  StartAgent();
  coordinator_.RefuseRecords(grpc::StatusCode::UNAVAILABLE);
  coordinator_.Want(Assignment(kJob, 5));
  ASSERT_TRUE(Eventually([&] {
    const auto text = ReadWholeFile(Dir(kJob).path / "exit.json");
    return text.ok();
  }));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).state(), v1::WorkerObservation::STATE_RUNNING);
  coordinator_.RefuseRecords(grpc::StatusCode::OK);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(5));
}

TEST_F(AgentTest, GivesUpReportingAJobThatTheCoordinatorDoesNotKnow) {
  StartAgent();
  coordinator_.RefuseRecords(grpc::StatusCode::NOT_FOUND);
  coordinator_.Want(Assignment(kJob, 5));
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_THAT(coordinator_.Records(kJob), ::testing::IsEmpty());
}

TEST_F(AgentTest, SendsAgainWhatTheCoordinatorHasForgotten) {
  StartAgent();
  RunWorker(Assignment(kJob, 1000000));
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, 20));
  coordinator_.ForgetRecordsFrom(kJob, 4);
  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(WaitForEnd(kJob));
  const std::vector<int64_t> steps = coordinator_.Steps(kJob);
  EXPECT_EQ(steps, OneTo(static_cast<int64_t>(steps.size())));
  EXPECT_GE(steps.size(), 20U);
}

TEST_F(AgentTest, SendsAgainTheRestOfABatchThatWasTakenInPart) {
  StartAgent();
  coordinator_.TakeAtMost(3);
  coordinator_.Want(Assignment(kJob, 40, {{"step_ms", "0"}}));
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(40));
}

TEST_F(AgentTest, WorkersSeeAnAllowListedEnvironment) {
  std::ofstream(folder_ / "agent.yaml", std::ios::app)
      << "pass_environment: [NSA_TEST_PASSED]\ndata_cache_dir: /c\ndata_cache_bytes: 5\n";
  StartAgent({{"LD_PRELOAD", "/no/such/library.so"},
              {"NSA_TEST_SECRET", "secret"},
              {"NSA_TEST_PASSED", "passed"},
              {"HF_TOKEN", "hf_x"},
              {"HF_TOKEN_PATH", "/of/the/agent"},
              {"https_proxy", "http://proxy.example:3128"},
              {"AWS_ACCESS_KEY_ID", "AKIA"},
              {"NCCL_ALGO", "Tree"},
              {"NCCL_DEBUG", "INFO"},
              {"NCCL_IB_DISABLE", "0"},
              {"NCCL_IB_GID_INDEX", "3"},
              {"NCCL_IB_HCA", "mlx5_0"},
              {"NCCL_P2P_DISABLE", "1"},
              {"NCCL_SOCKET_IFNAME", "eth1"},
              {"NSA_NCCL_LIBRARY", "/l/libnccl.so.2"},
              {"NSA_DATA_CACHE_BYTES", "7"},
              {"TZ", "UTC"}});
  coordinator_.Want(Assignment(kJob, 1, {{"print_environment", "1"}}));
  ASSERT_TRUE(WaitForEnd(kJob));
  const std::string environment = coordinator_.Log(kJob);
  EXPECT_THAT(environment, AllOf(HasSubstr("TZ=UTC\n"), HasSubstr("NSA_TEST_PASSED=passed\n"),
                                 HasSubstr("PATH=/usr/bin:/bin\n")));
  EXPECT_THAT(environment,
              AllOf(HasSubstr("HF_TOKEN=hf_x\n"), HasSubstr("NSA_DATA_CACHE_DIR=/c\n"),
                    HasSubstr("NSA_DATA_CACHE_BYTES=5\n"), Not(HasSubstr("_BYTES=7"))));
  EXPECT_THAT(environment, HasSubstr("HF_TOKEN_PATH=\n")) << "no file, whatever HOME has";
  EXPECT_THAT(environment, AllOf(HasSubstr("AWS_ACCESS_KEY_ID=AKIA\n"),
                                 HasSubstr("AWS_SHARED_CREDENTIALS_FILE=\n")));
  EXPECT_THAT(environment, HasSubstr("https_proxy=http://proxy.example:3128\n"));
  EXPECT_THAT(environment,
              AllOf(HasSubstr("NCCL_DEBUG=INFO\n"), HasSubstr("NCCL_IB_DISABLE=0\n"),
                    HasSubstr("NCCL_IB_GID_INDEX=3\n"), HasSubstr("NCCL_IB_HCA=mlx5_0\n"),
                    HasSubstr("NCCL_P2P_DISABLE=1\n"), HasSubstr("NCCL_SOCKET_IFNAME=eth1\n"),
                    HasSubstr("NSA_NCCL_LIBRARY=/l/libnccl.so.2\n"), Not(HasSubstr("NCCL_ALGO"))));
  EXPECT_THAT(environment, AllOf(Not(HasSubstr("LD_PRELOAD")), Not(HasSubstr("secret"))));
}

TEST_F(AgentTest, RefusesAJobIdThatLeavesItsFolder) {
  StartAgent();
  const Key outside = {"../outside", 1, 0};
  coordinator_.Want(Assignment(outside, 5));
  coordinator_.Want(Assignment(kJob, 1));
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "state" / "outside"));
  EXPECT_EQ(coordinator_.Observation(outside).state(), v1::WorkerObservation::STATE_UNSPECIFIED);
  EXPECT_THAT(AgentLog(), HasSubstr("../outside"));
}

TEST_F(AgentTest, ASecondAgentOnTheStateFolderSaysSoAndEnds) {
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  const auto second = Spawn({.argv = AgentCommand(), .output = folder_ / "second.log"});
  ASSERT_OK(second);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(second->pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ((*TryReap(second->pid))->code, 6);
  EXPECT_THAT(
      *ReadWholeFile(folder_ / "second.log"),
      HasSubstr(absl::StrCat("in use by another agent (process ", agent_.pid, " (nsa-agent) on ")));
  const auto holder = ReadIdentity(folder_ / "state" / "agent.lock");
  ASSERT_OK(holder);
  EXPECT_EQ(*holder, agent_);
}

TEST_F(AgentTest, BadConfigurationIsExitCodeTwoWithItsPlace) {
  std::ofstream(folder_ / "agent.yaml", std::ios::app) << "heartbeat_second: 1\n";
  StartAgent();
  EXPECT_EQ(AwaitAgent().code, 2);
  EXPECT_THAT(AgentLog(), AllOf(HasSubstr("agent.yaml:4:1"), HasSubstr("heartbeat_seconds")));
}

TEST_F(AgentTest, ARemoteCoordinatorNeedsTls) {
  std::ofstream(folder_ / "agent.yaml") << "coordinator_address: 192.0.2.1:50951\n";
  const auto agent = Spawn({.argv = {Program("nsa-agent"), "--config",
                                     (folder_ / "agent.yaml").string(), "--state-dir", StateDir()},
                            .output = folder_ / "agent.log"});
  ASSERT_OK(agent);
  agent_ = *agent;
  EXPECT_EQ(AwaitAgent().code, 2);
  EXPECT_THAT(AgentLog(), HasSubstr("needs tls"));
}

TEST_F(AgentTest, SigtermEndsTheAgentAndNotItsWorkers) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  const absl::Duration start = RealClock().Monotonic();
  EXPECT_EQ(EndAgent(SIGTERM).code, 0);
  EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(2));
  EXPECT_TRUE(IsAlive(worker));
}

}  // namespace
}  // namespace nsa
