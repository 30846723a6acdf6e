// The whole coordinator in the test process, called over gRPC, with fake agents.
#pragma once

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/rpc.h"
#include "gtest/gtest.h"
#include "nsa/v1/coordinator.grpc.pb.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "server/decide/lifecycle.h"
#include "server/server.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_agent.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {

class ServerTest : public ::testing::Test {
 protected:
  using Job = v1::Job;
  static constexpr absl::Duration kTimeout = absl::Seconds(20);

  ServerTest() { Start(); }
  ~ServerTest() override { StopBeating(); }

  Options MakeOptions() {
    v1::CoordinatorConfig config;
    config.set_state_dir((folder_ / "state").string());
    config.set_listen_address("127.0.0.1:0");
    // Stopping the HTTP server takes two seconds, so only the tests that need it have one.
    config.set_metrics_address(metrics_address_);
    config.set_page_url(page_url_);
    config.set_local_agent(local_agent_);
    config.set_token_file(token_file_);
    auto options = ResolveOptions(config);
    EXPECT_TRUE(options.ok()) << options.status();
    options->agent_program = folder_ / "no-agent";  // none is started in earnest
    options->tls = tls_;
    if (!allowed_root_.empty()) options->allowed_roots = {allowed_root_};
    if (forgets_at_once_) {
      options->node_unknown = options->node_lost = options->node_forgotten = absl::Seconds(1);
    }
    if (unknown_soon_) options->node_unknown = absl::Seconds(1);
    options->ping_every = ping_every_;
    options->ping_timeout = ping_timeout_;
    return *options;
  }

  absl::StatusOr<std::unique_ptr<Server>> StartWith(const Options& options) {
    const auto credentials = ReadCredentials(options, absl::Now());
    if (!credentials.ok()) return credentials.status();
    return Server::Start(options, *credentials, clock_, [] { ADD_FAILURE() << "unreachable"; });
  }

  void Start() {
    auto started = StartWith(MakeOptions());
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    const std::string socket = absl::StrCat("unix:", (folder_ / "state/coordinator.sock").string());
    people_ = v1::CoordinatorService::NewStub(*OpenChannel(socket, {}));
    // Kept over a restart, as a real agent keeps its channel. The thread of KeepBeating() may be
    // using it.
    if (agents_ == nullptr) agents_ = v1::FleetService::NewStub(*OpenChannel(socket, {}));
  }

  // Restarts the coordinator.
  void Restart() {
    server_.reset();
    Start();
  }

  // The token that TCP callers need.
  std::string Token() {
    std::ifstream file(MakeOptions().token_file);
    std::string token;
    std::getline(file, token);
    return token;
  }

  FakeAgent::Wire Wire() {
    return {.heartbeat =
                [this](const v1::HeartbeatRequest& request) {
                  return Call<v1::HeartbeatResponse>(&v1::FleetService::Stub::Heartbeat,
                                                     agents_.get(), request);
                },
            .records =
                [this](const v1::ReportRecordsRequest& request) {
                  return Call<v1::ReportRecordsResponse>(&v1::FleetService::Stub::ReportRecords,
                                                         agents_.get(), request);
                },
            .dump =
                [this](const v1::ReportDumpRequest& request) {
                  return Call<v1::ReportDumpResponse>(&v1::FleetService::Stub::ReportDump,
                                                      agents_.get(), request);
                }};
  }

  template <typename Response, typename Method, typename Stub, typename Request>
  absl::StatusOr<Response> Call(Method method, Stub* stub, const Request& request,
                                grpc::Status* wire = nullptr) {
    const auto context = MakeContext(kTimeout, "");
    Response response;
    const grpc::Status status = (stub->*method)(context.get(), request, &response);
    if (wire != nullptr) *wire = status;
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  // Starts a thread that sends an agent's heartbeats; the agent's workers train `steps` steps per
  // heartbeat.
  void KeepBeating(int slots, int64_t steps) {
    agent_ = std::make_unique<FakeAgent>("a", slots, Wire());
    steps_ = steps;
    beating_ = true;
    beats_ = std::thread([this] {
      while (beating_) {
        // Fails while the coordinator is down.
        agent_->Beat().IgnoreError();
        agent_->Train(steps_);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }
  void StopBeating() {
    beating_ = false;
    if (beats_.joinable()) beats_.join();
  }

  v1::JobSpec Spec(const std::string& name, int ranks = 1) {
    return TinyJob(name, folder_ / "out" / name, ranks);
  }
  absl::StatusOr<v1::SubmitJobResponse> TrySubmit(const v1::JobSpec& spec,
                                                  const std::string& request_id = "",
                                                  grpc::Status* wire = nullptr) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    return Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob, people_.get(),
                                       request, wire);
  }
  std::string Submit(const v1::JobSpec& spec) {
    const auto response = TrySubmit(spec);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->job().id() : "";
  }
  Job Get(const std::string& id) {
    v1::GetJobRequest request;
    request.set_job(id);
    const auto response =
        Call<v1::GetJobResponse>(&v1::CoordinatorService::Stub::GetJob, people_.get(), request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->job() : Job();
  }
  // Watches a job to its end. Returns the last message.
  Job Follow(const std::string& id, std::vector<std::string>* states = nullptr) {
    const auto context = MakeContext(kTimeout, "");
    v1::WatchJobRequest request;
    request.set_job(id);
    const auto reader = people_->WatchJob(context.get(), request);
    v1::WatchJobResponse response;
    while (reader->Read(&response)) {
      const std::string state = StateName(response.job().state());
      if (states != nullptr && (states->empty() || states->back() != state)) {
        states->push_back(state);
      }
    }
    EXPECT_TRUE(reader->Finish().ok());
    return response.job();
  }
  std::vector<v1::WatchRecordsResponse> Records(const std::string& id, int32_t rank,
                                                int64_t after = 0, int count = 1'000'000) {
    const auto context = MakeContext(kTimeout, "");
    v1::WatchRecordsRequest request;
    request.set_job(id);
    request.set_rank(rank);
    request.set_after_position(after);
    const auto reader = people_->WatchRecords(context.get(), request);
    std::vector<v1::WatchRecordsResponse> records;
    v1::WatchRecordsResponse response;
    while (static_cast<int>(records.size()) < count && reader->Read(&response)) {
      records.push_back(response);
    }
    context->TryCancel();
    return records;
  }

  TempDir folder_;
  RealClock clock_;
  std::string token_file_;  // empty: the coordinator makes one
  v1::TlsConfig tls_;
  std::string metrics_address_, page_url_;
  std::filesystem::path allowed_root_;
  bool local_agent_ = false;      // the coordinator starts one
  bool forgets_at_once_ = false;  // a machine is forgotten as soon as it is unknown
  bool unknown_soon_ = false;     // and it is unknown after a second
  absl::Duration ping_every_ = absl::Seconds(60);
  absl::Duration ping_timeout_ = absl::Seconds(20);
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> people_;
  std::unique_ptr<v1::FleetService::Stub> agents_;
  std::unique_ptr<FakeAgent> agent_;
  std::atomic<bool> beating_ = false;
  std::atomic<int64_t> steps_ = 0;
  std::thread beats_;
};

}  // namespace nsa::server
