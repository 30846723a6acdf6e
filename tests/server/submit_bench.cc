// Measures, over TCP on loopback with an operator's token: how many submits per second a
// coordinator accepts, with preflight and fsync, and how long a coordinator with many jobs takes
// from its start to its first answer.
//   submit_bench --benchmark_counters_tabular=true
#include <algorithm>
#include <filesystem>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "benchmark/benchmark.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "common/run/atomic_file.h"
#include "nsa/v1/coordinator.grpc.pb.h"
#include "server/server.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

class Coordinator {
 public:
  Coordinator() { Start(); }

  void Start() {
    v1::CoordinatorConfig config;
    config.set_state_dir((folder_ / "state").string());
    config.set_listen_address("127.0.0.1:0");
    config.set_metrics_address("");
    config.set_local_agent(false);
    const Options options = *ResolveOptions(config);
    server_ = *Server::Start(options, *ReadCredentials(options, absl::Now()), clock_, [] {});
    token_ = std::string(absl::StripAsciiWhitespace(*ReadWholeFile(folder_ / "state/token")));
  }
  void Stop() { server_.reset(); }

  std::unique_ptr<v1::CoordinatorService::Stub> Connect() const {
    return v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}));
  }

  // Submits a job with this name; returns how many milliseconds it took.
  absl::StatusOr<double> Submit(v1::CoordinatorService::Stub& stub, const std::string& name) const {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = TinyJob(name, folder_ / "out" / name);
    request.set_request_id(name);
    v1::SubmitJobResponse response;
    const auto context = MakeContext(absl::Seconds(30), token_);
    const absl::Duration start = clock_.Monotonic();
    const grpc::Status status = stub.SubmitJob(context.get(), request, &response);
    if (!status.ok()) return absl::InternalError(status.error_message());
    return absl::ToDoubleMilliseconds(clock_.Monotonic() - start);
  }

  // The number of jobs on the first page.
  int List() const {
    v1::ListJobsRequest request;
    v1::ListJobsResponse response;
    const auto context = MakeContext(absl::Seconds(30), token_);
    return Connect()->ListJobs(context.get(), request, &response).ok() ? response.jobs_size() : -1;
  }

 private:
  TempDir folder_;
  RealClock clock_;
  std::unique_ptr<Server> server_;
  std::string token_;
};

// The value that 99 % of the values do not exceed.
double Percentile99(std::vector<double> values) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() * 99 / 100);
  std::ranges::nth_element(values, at);
  return *at;
}

void Submit(benchmark::State& state) {
  static Coordinator* coordinator = nullptr;
  static std::vector<std::vector<double>> milliseconds;  // by thread
  if (state.thread_index() == 0) {
    coordinator = new Coordinator;
    milliseconds.assign(static_cast<size_t>(state.threads()), {});
  }
  std::unique_ptr<v1::CoordinatorService::Stub> stub;
  for (auto _ : state) {
    if (stub == nullptr) stub = coordinator->Connect();
    auto& mine = milliseconds[static_cast<size_t>(state.thread_index())];
    const auto took =
        coordinator->Submit(*stub, absl::StrCat("j", state.thread_index(), "-", mine.size()));
    if (!took.ok()) state.SkipWithError(std::string(took.status().message()).c_str());
    mine.push_back(took.value_or(0));
  }
  state.SetItemsProcessed(state.iterations());
  if (state.thread_index() != 0) return;
  std::vector<double> all;
  for (const auto& some : milliseconds) all.insert(all.end(), some.begin(), some.end());
  state.counters["jobs"] = static_cast<double>(all.size());
  state.counters["slowest_ms"] = std::ranges::max(all);
  state.counters["p99_ms"] = Percentile99(std::move(all));
  delete coordinator;
}
BENCHMARK(Submit)->Threads(1)->Iterations(2'000)->UseRealTime();
BENCHMARK(Submit)->Threads(20)->Iterations(500)->UseRealTime();

// One restart of a coordinator with this many queued jobs.
void Recover(benchmark::State& state) {
  constexpr int kThreads = 20;
  Coordinator coordinator;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto stub = coordinator.Connect();
      for (int64_t job = thread; job < state.range(0); job += kThreads) {
        coordinator.Submit(*stub, absl::StrCat("j", job)).status().IgnoreError();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  coordinator.Stop();
  for (auto _ : state) {
    coordinator.Start();
    if (coordinator.List() <= 0) state.SkipWithError("no jobs after the restart");
    state.PauseTiming();
    coordinator.Stop();
    state.ResumeTiming();
  }
}
BENCHMARK(Recover)->Arg(10'000)->Iterations(3)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace nsa::server

BENCHMARK_MAIN();
