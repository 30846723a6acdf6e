// The coordinator's parts without gRPC and without background loops: a test advances the clock,
// sends heartbeats and calls the reconciler's tick.
#pragma once

#include <algorithm>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "server/act/dump_broker.h"
#include "server/act/executor.h"
#include "server/act/job_control.h"
#include "server/act/node/node_control.h"
#include "server/act/reconciler.h"
#include "server/rpc/auth.h"
#include "server/rpc/call.h"
#include "server/rpc/fleet_service.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/store/log_store.h"
#include "server/store/stack_store.h"
#include "server/watch/change_hub.h"
#include "server/watch/metrics.h"
#include "server/watch/queue_board.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_agent.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {

// first, first + 1, … last.
inline std::vector<int64_t> UpTo(int64_t last, int64_t first = 1) {
  std::vector<int64_t> steps(static_cast<size_t>(last - first + 1));
  std::iota(steps.begin(), steps.end(), first);
  return steps;
}

// Somebody on the unix socket without a secret.
inline Caller LocalCaller() { return {.name = "local", .role = v1::ROLE_OPERATOR, .local = true}; }

// The agent of a node that has joined.
inline Caller AgentCaller(const std::string& node) {
  return {.name = "node " + node, .role = v1::ROLE_AGENT, .node = node};
}

// Everything of one run of the coordinator. To simulate a restart, destroy it and make another one
// on the same folder.
struct Life {
  Life(const std::filesystem::path& folder, FakeClock& a_clock,
       const std::filesystem::path& allowed_root = "/", const SchedulingPolicy& scheduling = {},
       double default_hours = 0)
      : clock(a_clock),
        metrics(clock),
        fleet(clock, {}),
        logs(folder / "logs", 1 << 20),
        stacks(folder / "dumps", clock),
        dumps(clock),
        profiles(clock, [this](const std::string& id) { hub.Publish(id); }),
        paths({allowed_root}),
        auth(Auth::WithoutFile(nullptr)),
        executor("calls", 1) {
    JobStore::Observer observer{
        .changed = [this](const std::string& id) { hub.Publish(id); },
        .moved = [this](State from, const v1::StoredJob& job) { metrics.ObserveMove(from, job); },
        .committed = [this](double seconds) { metrics.ObserveCommit(seconds); },
        .failed = [this](const std::string& what,
                         const absl::Status&) { metrics.ObserveStoreError(what); }};
    auto opened = JobStore::Open(folder, clock, std::move(observer));
    if (!opened.ok()) ADD_FAILURE() << opened.status();
    store = *std::move(opened);
    auto known = AccessStore::Open(folder, clock);
    if (!known.ok()) ADD_FAILURE() << known.status();
    access = *std::move(known);
    auto cordons = NodeStore::Open(folder);
    if (!cordons.ok()) ADD_FAILURE() << cordons.status();
    nodes = *std::move(cordons);
    control = std::make_unique<JobControl>(*store, fleet, *nodes, board, paths, clock,
                                           JobPolicy{.provisioners = {"slurm"},
                                                     .notices = {"slack", "mail"},
                                                     .quotas = scheduling.quotas,
                                                     .default_hours = default_hours});
    node_control = std::make_unique<NodeControl>(*nodes, fleet, *access, *store, clock);
    rules = std::make_unique<CallRules>(CallRules{.auth = auth,
                                                  .executor = executor,
                                                  .draining = draining,
                                                  .observe = [](auto&&...) {},
                                                  .observe_stream = [](auto&&...) {}});
    reconciler = std::make_unique<Reconciler>(
        Reconciler::Parts{.store = *store,
                          .fleet = fleet,
                          .nodes = *nodes,
                          .board = board,
                          .dumps = dumps,
                          .profiles = profiles,
                          .executor = executor,
                          .paths = paths,
                          .clock = clock,
                          .stacks = stacks,
                          .scheduling = scheduling,
                          .changed = [this](const std::string& id) { hub.Publish(id); }});
    service = std::make_unique<FleetService>(FleetService::Parts{
        .store = *store,
        .access = *access,
        .fleet = fleet,
        .nodes = *nodes,
        .logs = logs,
        .dumps = dumps,
        .profiles = profiles,
        .hub = hub,
        .rules = *rules,
        .clock = clock,
        .on_heartbeat = [] {},
        .recorded =
            [this](const v1::Job& job, int32_t rank, const std::vector<v1::WorkerRecord>& records) {
              metrics.ObserveRecords(job, rank, records);
            },
        .epoch = "epoch"});
  }

  // Waits until the executor has done all its tasks.
  void Settle() {
    std::promise<void> done;
    executor.Run([&done] { done.set_value(); });
    done.get_future().wait();
  }

  FakeClock& clock;
  const std::atomic<bool> draining = false;
  Metrics metrics;
  ChangeHub hub;
  Fleet fleet;
  LogStore logs;
  StackStore stacks;
  DumpBroker dumps;
  ProfileBroker profiles;
  QueueBoard board;
  PathGuard paths;
  Auth auth;
  std::unique_ptr<JobStore> store;
  std::unique_ptr<AccessStore> access;
  std::unique_ptr<NodeStore> nodes;
  std::unique_ptr<JobControl> control;
  std::unique_ptr<NodeControl> node_control;
  std::unique_ptr<Reconciler> reconciler;
  std::unique_ptr<CallRules> rules;
  std::unique_ptr<FleetService> service;
  Executor executor;
};

class Harness : public ::testing::Test {
 protected:
  Harness() {
    std::filesystem::create_directories(folder_ / "state");
    Restart();
  }

  // Restarts the coordinator. Agents and workers stay. `meanwhile` is done while none runs.
  void Restart(const std::function<void()>& meanwhile = {}) {
    life_.reset();
    if (meanwhile) meanwhile();
    life_ = std::make_unique<Life>(folder_ / "state", clock_, "/", scheduling_, default_hours_);
  }
  Life& life() { return *life_; }
  JobStore& store() { return *life_->store; }
  JobControl& control() { return *life_->control; }
  FakeClock& clock() { return clock_; }

  FakeAgent MakeAgent(const std::string& name, int slots) {
    return FakeAgent(
        name, slots,
        {.heartbeat =
             [this](const auto& request) { return life_->service->Answer(request, LocalCaller()); },
         .records =
             [this](const auto& request) { return life_->service->Take(request, LocalCaller()); },
         .dump = [this](const v1::ReportDumpRequest& request)
             -> absl::StatusOr<v1::ReportDumpResponse> {
           NSA_RETURN_IF_ERROR(life_->dumps.Report(request));
           return v1::ReportDumpResponse();
         }});
  }

  // Half a second passes: every agent sends a heartbeat, the reconciler ticks twice.
  void Round(std::initializer_list<FakeAgent*> agents) {
    clock_.Advance(absl::Milliseconds(250));
    for (FakeAgent* agent : agents) EXPECT_OK(agent->Beat());
    Look();
    clock_.Advance(absl::Milliseconds(250));
    Look();
  }
  // Time passes without heartbeats; the reconciler ticks once a second.
  void Pass(absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(1)) {
      clock_.Advance(std::min(time, absl::Seconds(1)));
      Look();
    }
  }
  void Look() {
    life_->reconciler->Tick();
    life_->Settle();
  }

  std::string Submit(const v1::JobSpec& spec, const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    const auto response = control().Submit(request);
    EXPECT_OK(response.status());
    return response.ok() ? response->job().id() : "";
  }
  v1::JobSpec Spec(const std::string& name, int ranks = 1) {
    return TinyJob(name, folder_ / "out" / name, ranks);
  }
  v1::Job Get(const std::string& id) {
    const auto job = control().Get(id);
    EXPECT_OK(job.status());
    return job.ok() ? *job : v1::Job();
  }
  absl::Status Stop(const std::string& id, v1::StopMode mode, int64_t at_step = 0) {
    v1::StopJobRequest request;
    request.set_job(id);
    request.mutable_stop()->set_mode(mode);
    request.mutable_stop()->set_at_step(at_step);
    return control().Stop(request).status();
  }

  absl::Status Resume(const std::string& id_or_name, const std::string& request_id = "",
                      const std::optional<v1::JobSpec>& spec = std::nullopt) {
    v1::ResumeJobRequest request;
    request.set_job(id_or_name);
    if (spec.has_value()) *request.mutable_spec() = *spec;
    request.set_request_id(request_id);
    return control().Resume(request).status();
  }

  // Runs rounds until the job is in this state; fails after 40.
  void RunUntil(const std::string& id, v1::Job::State state,
                std::initializer_list<FakeAgent*> agents) {
    ASSERT_NE(id, "");
    for (int i = 0; i < 40 && Get(id).state() != state; ++i) Round(agents);
    ASSERT_EQ(StateName(Get(id).state()), StateName(state))
        << Get(id).reason() << ": " << Get(id).message();
  }

  // "LAUNCHED ALL_RANKS_UP …": reasons of a job's events in order.
  std::string History(const std::string& id) {
    const auto events = store().Events(id, 0, 1'000);
    EXPECT_OK(events.status());
    std::string history;
    if (!events.ok()) return history;
    for (const v1::JobEvent& event : *events) {
      absl::StrAppend(&history, history.empty() ? "" : " ", event.reason());
    }
    return history;
  }

  // The steps that are stored of one rank, in order of arrival.
  std::vector<int64_t> StoredSteps(const std::string& id, int32_t rank) {
    std::vector<int64_t> steps;
    const auto records = store().Records(id, rank, 0, 100'000);
    EXPECT_OK(records.status());
    if (!records.ok()) return steps;
    for (const auto& record : *records) {
      if (record.record().has_step()) steps.push_back(record.record().step().step());
    }
    return steps;
  }

  TempDir folder_;
  SchedulingPolicy scheduling_;  // of the next Restart()
  double default_hours_ = 0;     // the same

 private:
  FakeClock clock_;
  std::unique_ptr<Life> life_;
};

}  // namespace nsa::server
