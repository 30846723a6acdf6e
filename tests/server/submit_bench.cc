// Measures how many submits per second a coordinator accepts over gRPC, with preflight and fsync.
//   submit_bench --benchmark_counters_tabular=true
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "nsa/v1/coordinator.grpc.pb.h"
#include "server/server.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

struct Coordinator {
  TempDir folder;
  RealClock clock;
  std::unique_ptr<Server> server;
  std::string address;

  Coordinator() {
    v1::CoordinatorConfig config;
    config.set_state_dir((folder / "state").string());
    config.set_listen_address("");
    config.set_metrics_address("");
    config.set_local_agent(false);
    server = *Server::Start(*ResolveOptions(config), clock, [] {});
    address = absl::StrCat("unix:", (folder / "state/coordinator.sock").string());
  }
};

void Submit(benchmark::State& state) {
  static Coordinator* coordinator = nullptr;
  if (state.thread_index() == 0) coordinator = new Coordinator;
  std::unique_ptr<v1::CoordinatorService::Stub> stub;
  int64_t number = 0;
  double slowest = 0;
  for (auto _ : state) {
    if (stub == nullptr)
      stub = v1::CoordinatorService::NewStub(*OpenChannel(coordinator->address, {}));
    v1::SubmitJobRequest request;
    const std::string name = absl::StrCat("j", state.thread_index(), "-", number++);
    *request.mutable_spec() = TinyJob(name, coordinator->folder / "out" / name);
    request.set_request_id(name);
    v1::SubmitJobResponse response;
    const auto context = MakeContext(absl::Seconds(30), "");
    const absl::Duration start = RealClock().Monotonic();
    const grpc::Status status = stub->SubmitJob(context.get(), request, &response);
    slowest = std::max(slowest, absl::ToDoubleMilliseconds(RealClock().Monotonic() - start));
    if (!status.ok()) state.SkipWithError(status.error_message().c_str());
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["slowest_ms"] = benchmark::Counter(slowest, benchmark::Counter::kAvgThreads);
  if (state.thread_index() == 0) {
    state.counters["jobs"] = static_cast<double>(state.iterations() * state.threads());
    delete coordinator;
  }
}
BENCHMARK(Submit)->Threads(1)->Iterations(2'000)->UseRealTime();
BENCHMARK(Submit)->Threads(20)->Iterations(500)->UseRealTime();

}  // namespace
}  // namespace nsa::server

BENCHMARK_MAIN();
