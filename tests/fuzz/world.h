// A coordinator in memory for the targets that speak to it: its parts without gRPC and without
// threads of their own, a clock that stands still, and the job "base", which runs on the node "a".
#pragma once

#include <memory>
#include <string>

#include "server/rpc/errors.h"
#include "server/store/audit/audit_log.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/act/harness.h"

namespace nsa::fuzz {

class World {
 public:
  explicit World(bool with_job = true) : agent_("a", 2, Wire()) {
    std::filesystem::remove_all(folder());
    std::filesystem::create_directories(folder() / "state");
    std::filesystem::create_directories(folder() / "out");
    Restart();
    if (with_job) RunBase();
  }

  // The coordinator ends and starts again on its state.
  void Restart() {
    life_.reset();
    life_ = std::make_unique<server::Life>(folder() / "state", clock_, folder());
    Require(life_->store != nullptr && life_->access != nullptr, "the state cannot be opened");
    auto audit = server::AuditLog::Open(folder() / "state", clock_);
    Require(audit.ok(), audit.status().ToString());
    audit_ = *std::move(audit);
  }

  absl::StatusOr<v1::SubmitJobResponse> Submit(const std::string& name, int ranks) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = TinyJob(name, folder() / "out" / name, ranks);
    return life_->control->Submit(request);
  }

  // One look of the reconciler, and what it started.
  void Look() {
    life_->reconciler->Tick();
    life_->Settle();
  }

  server::Life& life() { return *life_; }
  server::AuditLog& audit() { return *audit_; }
  FakeClock& clock() { return clock_; }
  FakeAgent& agent() { return agent_; }
  static std::filesystem::path folder() { return Folder() / "world"; }

 private:
  void RunBase() {
    Require(Submit("base", 1).ok(), "a tiny job is refused");
    for (int i = 0; i < 40; ++i) {
      const auto job = life_->control->Get("base");
      if (job.ok() && job->state() == v1::Job::STATE_RUNNING) return;
      clock_.Advance(absl::Milliseconds(250));
      RequireRefusal(agent_.Beat());
      Look();
    }
    Require(false, "a tiny job does not run");
  }

  FakeAgent::Wire Wire() {
    const auto caller = [] { return server::LocalCaller(); };
    return {
        .heartbeat =
            [=, this](const auto& request) { return life_->service->Answer(request, caller()); },
        .records = [=,
                    this](const auto& request) { return life_->service->Take(request, caller()); },
        .dump = [](const auto&) { return v1::ReportDumpResponse(); }};
  }

  FakeClock clock_;
  std::unique_ptr<server::Life> life_;
  std::unique_ptr<server::AuditLog> audit_;
  FakeAgent agent_;
};

}  // namespace nsa::fuzz
