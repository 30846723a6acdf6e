// The whole service in the test's own folder: coordinator, the agent that it starts, and workers
// (nsa-worker or fake_worker). Processes that still run at the end are killed.
#pragma once

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "common/run/run_dir.h"
#include "common/run/status_page.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nsa/v1/coordinator.grpc.pb.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {

class ServiceFixture {
 public:
  // `worker` is a program's name, e.g. "nsa-worker".
  explicit ServiceFixture(const std::string& worker) {
    // The coordinator starts its agent without further flags; this script adds some.
    const auto agent = folder_ / "agent.sh";
    std::ofstream(folder_ / "agent.yaml") << "heartbeat_seconds: 0.1\ncpu_slots: 8\n";
    std::ofstream(agent) << "#!/bin/sh\nexec " << Program("nsa-agent") << " \"$@\" --config "
                         << (folder_ / "agent.yaml").string() << " --worker-program "
                         << Program(worker) << "\n";
    chmod(agent.c_str(), 0700);
    std::ofstream(folder_ / "coordinator.yaml")
        << "state_dir: " << state_dir().string() << "\nmetrics_address: ''\n"
        << "agent_program: " << agent.string() << "\n";
    StartCoordinator();
  }

  ~ServiceFixture() {
    if (coordinator_.pid != 0) KillCoordinator();
    KillAgent();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(state_dir())) {
      if (entry.path().filename() != "identity.json") continue;
      const auto worker = ReadIdentity(entry.path());
      if (worker.ok()) SignalProcess(*worker, SIGKILL).IgnoreError();
    }
    if (::testing::Test::HasFailure() && std::getenv("NSA_TEST_KEEP") != nullptr) {
      std::filesystem::copy(
          folder_.path(), std::getenv("NSA_TEST_KEEP"),
          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    }
  }

  // Starts the coordinator with these extra environment variables.
  void StartCoordinator(const std::map<std::string, std::string>& environment = {}) {
    SpawnCoordinator(environment);
    grpc::ChannelArguments arguments;
    // Otherwise the connection to the previous coordinator might be used again.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    channel_ = grpc::CreateCustomChannel("unix:" + (state_dir() / "coordinator.sock").string(),
                                         grpc::InsecureChannelCredentials(), arguments);
    ASSERT_TRUE(
        channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)));
    stub_ = v1::CoordinatorService::NewStub(channel_);
  }

  void KillCoordinator() {
    EXPECT_OK(SignalProcess(coordinator_, SIGKILL));
    waitpid(coordinator_.pid, nullptr, 0);
    coordinator_ = {};
  }

  // Kills the coordinator and starts it again while clients may be calling it.
  void ReplaceCoordinator() {
    KillCoordinator();
    SpawnCoordinator({});
  }

  // Waits until the coordinator has ended by itself; fails after two minutes. Returns the signal
  // that ended it, or 0.
  int AwaitCoordinator() {
    const absl::Duration give_up = RealClock().Monotonic() + absl::Minutes(2);
    while (RealClock().Monotonic() < give_up) {
      const auto ended = TryReap(coordinator_.pid);
      EXPECT_OK(ended);
      if (!ended.ok()) return 0;
      if (ended->has_value()) {
        coordinator_ = {};
        return (*ended)->signal;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    ADD_FAILURE() << "the coordinator did not end\n" << Logs();
    return 0;
  }

  // Kills the agent; the coordinator starts another one.
  void KillAgent() {
    const auto agent = ReadIdentity(state_dir() / "agent" / "agent.lock");
    if (agent.ok()) SignalProcess(*agent, SIGKILL).IgnoreError();
  }

  // Stops the agent until WakeAgent(), so that no job begins to train.
  void PauseAgent() { SignalAgent(SIGSTOP); }
  void WakeAgent() { SignalAgent(SIGCONT); }

  // Makes one attempt; the coordinator may be down.
  grpc::Status TrySubmit(const v1::JobSpec& spec, const std::string& request_id,
                         v1::SubmitJobResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::SubmitJobRequest request;
    request.set_request_id(request_id);
    *request.mutable_spec() = spec;
    return stub_->SubmitJob(&context, request, response);
  }

  std::string Submit(const v1::JobSpec& spec) {
    v1::SubmitJobResponse response;
    const grpc::Status status = TrySubmit(spec, absl::StrCat("request-", ++requests_), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    for (const v1::Finding& finding : response.report().findings()) {
      if (finding.severity() == v1::SEVERITY_ERROR && finding.waived().empty()) {
        ADD_FAILURE() << finding.rule() << ": " << finding.field() << ": " << finding.problem();
      }
    }
    return response.job().id();
  }

  // Tries again while the coordinator is down.
  v1::Job Get(const std::string& id) {
    v1::GetJobRequest request;
    v1::GetJobResponse response;
    request.set_job(id);
    for (int attempt = 0; attempt < 50; ++attempt) {
      grpc::ClientContext context;
      if (stub_->GetJob(&context, request, &response).ok()) break;
      absl::SleepFor(absl::Milliseconds(100));
    }
    return response.job();
  }

  // Every job, newest first.
  std::vector<v1::Job> List() {
    std::vector<v1::Job> jobs;
    v1::ListJobsRequest request;
    v1::ListJobsResponse response;
    do {
      grpc::ClientContext context;
      request.set_page_token(response.next_page_token());
      const grpc::Status status = stub_->ListJobs(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      jobs.insert(jobs.end(), response.jobs().begin(), response.jobs().end());
    } while (!response.next_page_token().empty());
    return jobs;
  }

  void Stop(const std::string& id, v1::StopMode mode, int64_t at_step = 0) {
    grpc::ClientContext context;
    v1::StopJobRequest request;
    v1::StopJobResponse response;
    request.set_job(id);
    request.mutable_stop()->set_mode(mode);
    request.mutable_stop()->set_at_step(at_step);
    const grpc::Status status = stub_->StopJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  void Resume(const std::string& id) {
    grpc::ClientContext context;
    v1::ResumeJobRequest request;
    v1::ResumeJobResponse response;
    request.set_job(id);
    const grpc::Status status = stub_->ResumeJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  v1::VerifyCheckpointResponse Verify(const std::string& id, int64_t step) {
    grpc::ClientContext context;
    v1::VerifyCheckpointRequest request;
    v1::VerifyCheckpointResponse response;
    request.set_job(id);
    request.set_step(step);
    const grpc::Status status = stub_->VerifyCheckpoint(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  v1::DumpStackResponse DumpStack(const std::string& id) {
    grpc::ClientContext context;
    v1::DumpStackRequest request;
    v1::DumpStackResponse response;
    request.set_job(id);
    request.set_rank(-1);
    const grpc::Status status = stub_->DumpStack(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // Waits until the job has ended; fails after two minutes.
  v1::Job WaitForEnd(const std::string& id) {
    return WaitUntil(id, [](const v1::Job& job) {
      return job.state() == v1::Job::STATE_SUCCEEDED || job.state() == v1::Job::STATE_FAILED ||
             job.state() == v1::Job::STATE_STOPPED;
    });
  }
  v1::Job WaitUntil(const std::string& id, const std::function<bool(const v1::Job&)>& holds) {
    const absl::Duration give_up = RealClock().Monotonic() + absl::Minutes(2);
    v1::Job job = Get(id);
    while (!holds(job)) {
      if (RealClock().Monotonic() > give_up) {
        ADD_FAILURE() << "job did not get there:\n" << job.ShortDebugString() << "\n" << Logs();
        return job;
      }
      absl::SleepFor(absl::Milliseconds(20));
      job = Get(id);
    }
    return job;
  }

  // Waits until a rank of the newest generation has done this step. Reads the rank's status page
  // directly, so that no other process adds a delay. Also waits for the identity file, which the
  // agent writes after the start and possibly after a quick worker's first steps.
  bool WaitForStep(const std::string& id, int rank, int64_t step) {
    const absl::Duration give_up = RealClock().Monotonic() + absl::Minutes(2);
    while (RealClock().Monotonic() < give_up) {
      for (int64_t generation = 9; generation >= 1; --generation) {
        const auto status = ReadStatusPage(Dir(id, generation, rank).status());
        if (status.ok() && status->step >= step && Worker(id, generation, rank).ok()) return true;
        if (status.ok()) break;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    ADD_FAILURE() << "step " << step << " was not reached\n" << Logs();
    return false;
  }

  std::vector<v1::WatchRecordsResponse> Records(const std::string& id, int rank) {
    grpc::ClientContext context;
    v1::WatchRecordsRequest request;
    request.set_job(id);
    request.set_rank(rank);
    std::vector<v1::WatchRecordsResponse> records;
    v1::WatchRecordsResponse response;
    const auto reader = stub_->WatchRecords(&context, request);
    while (reader->Read(&response)) records.push_back(response);
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return records;
  }

  std::vector<v1::JobEvent> Events(const std::string& id) {
    grpc::ClientContext context;
    v1::WatchEventsRequest request;
    request.set_job(id);
    std::vector<v1::JobEvent> events;
    v1::WatchEventsResponse response;
    const auto reader = stub_->WatchEvents(&context, request);
    while (reader->Read(&response)) events.push_back(response.event());
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return events;
  }

  // The logs of both daemons, for failure messages.
  std::string Logs() const {
    return absl::StrCat(ReadWholeFile(folder_ / "coordinator.log").value_or(""), "\n",
                        ReadWholeFile(state_dir() / "agent" / "agent.log").value_or(""));
  }

  std::filesystem::path state_dir() const { return folder_ / "state"; }
  std::filesystem::path folder() const { return folder_.path(); }
  RunDir Dir(const std::string& id, int64_t generation, int rank) const {
    return RunDir::Of(state_dir() / "agent", id, generation, rank);
  }
  absl::StatusOr<ProcessIdentity> Worker(const std::string& id, int64_t generation,
                                         int rank) const {
    return ReadIdentity(Dir(id, generation, rank).identity());
  }

 private:
  void SpawnCoordinator(std::map<std::string, std::string> environment) {
    environment.insert({{"PATH", "/usr/bin:/bin"}, {"OMP_WAIT_POLICY", "passive"}});
    const auto process = Spawn(
        {.argv = {Program("nsa-coordinator"), "--config", (folder_ / "coordinator.yaml").string()},
         .environment = std::move(environment),
         .output = folder_ / "coordinator.log"});
    ASSERT_OK(process);
    coordinator_ = *process;
  }
  void SignalAgent(int signal_number) {
    const auto agent = ReadIdentity(state_dir() / "agent" / "agent.lock");
    ASSERT_OK(agent);
    EXPECT_OK(SignalProcess(*agent, signal_number));
  }

  const TempDir folder_;
  ProcessIdentity coordinator_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  int requests_ = 0;
};

}  // namespace nsa
