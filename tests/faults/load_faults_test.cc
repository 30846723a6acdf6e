// nsa-coordinator under extreme load: ten thousand submits at once, thousands of idle connections,
// frequent scrapes with ten thousand jobs. Nothing is lost, memory stays bounded, and other callers
// are still answered.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/rpc/rpc.h"
#include "common/run/process.h"
#include "gmock/gmock.h"
#include "nsa/v1/coordinator.grpc.pb.h"
#include "server/act/job_control.h"
#include "server/store/job_store.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(10);  // the deadline of nsactl

class LoadFaults : public ::testing::Test {
 protected:
  using Stub = v1::CoordinatorService::Stub;

  ~LoadFaults() override { Kill(); }

  // Starts a coordinator without an agent: jobs stay QUEUED.
  void Start() {
    std::ofstream(folder_ / "coordinator.yaml") << "local_agent: false\n";
    const auto process = Spawn(
        {.argv = {Program("nsa-coordinator"), "--config", (folder_ / "coordinator.yaml").string(),
                  "--state-dir", state_dir().string(), "--metrics", "127.0.0.1:0"},
         .environment = FilterEnvironment({"PATH", "ASAN_OPTIONS"}),
         .output = folder_ / "coordinator.log"});
    ASSERT_OK(process);
    process_ = *process;
    const auto stub = Connect();
    v1::GetVersionResponse version;
    const auto context = MakeContext(absl::Minutes(1), "");
    context->set_wait_for_ready(true);
    const grpc::Status status = stub->GetVersion(context.get(), {}, &version);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_TRUE(Within(absl::Minutes(1), [&] {
      const auto again = MakeContext(kDeadline, "");
      return stub->GetVersion(again.get(), {}, &version).ok() && !version.metrics_address().empty();
    }));
    metrics_address_ = version.metrics_address();
  }
  void Kill() {
    if (process_.pid == 0) return;
    SignalProcess(process_, SIGKILL).IgnoreError();
    waitpid(process_.pid, nullptr, 0);
    process_ = {};
  }

  // A client with a separate connection.
  std::unique_ptr<Stub> Connect() const {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    own.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    own.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    return v1::CoordinatorService::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("unix:", (state_dir() / "coordinator.sock").string()),
        grpc::InsecureChannelCredentials(), own));
  }

  static bool Answers(Stub* stub) {
    v1::ListJobsRequest request;
    request.set_page_size(10);
    v1::ListJobsResponse response;
    const auto context = MakeContext(kDeadline, "");
    const grpc::Status status = stub->ListJobs(context.get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_code() << " " << status.error_message();
    return status.ok();
  }

  // Submits `count` jobs over one connection and returns their ids. Every twentieth request is sent
  // twice, as by an impatient client.
  std::vector<std::string> SubmitMany(int client, int count) const {
    std::vector<std::string> ids;
    const auto stub = Connect();
    for (int i = 0; i < count; ++i) {
      v1::SubmitJobRequest request;
      const std::string name = absl::StrCat("job-", client, "-", i);
      *request.mutable_spec() = TinyJob(name, folder_ / "out" / name);
      request.set_request_id(name);
      for (int times = i % 20 == 0 ? 2 : 1; times > 0; --times) {
        v1::SubmitJobResponse response;
        const auto context = MakeContext(absl::Minutes(1), "");
        const grpc::Status status = stub->SubmitJob(context.get(), request, &response);
        EXPECT_TRUE(status.ok()) << name << ": " << status.error_message();
        if (static_cast<int>(ids.size()) == i) ids.push_back(response.job().id());
        EXPECT_EQ(ids.back(), response.job().id());
      }
    }
    return ids;
  }

  // Fills a store: half of the jobs wait, half have ended.
  void FillStore(int jobs) {
    std::filesystem::create_directories(state_dir());
    const RealClock clock;
    auto store = server::JobStore::Open(state_dir(), clock, {});
    ASSERT_OK(store);
    for (int i = 0; i < jobs; ++i) {
      v1::StoredJob stored;
      v1::Job& job = *stored.mutable_job();
      job.set_id(server::NewJobId());
      job.set_name(absl::StrCat("job-", i));
      *job.mutable_spec() = TinyJob(job.name(), folder_ / "out" / job.name());
      job.set_state(i % 2 == 0 ? v1::Job::STATE_SUCCEEDED : v1::Job::STATE_QUEUED);
      v1::JobEvent event;
      event.set_reason("SUBMITTED");
      ASSERT_OK((*store)->Insert(stored, "", "", event).status());
    }
  }

  // The ids of all jobs, fetched page by page.
  static std::vector<std::string> ListAll(Stub* stub) {
    std::vector<std::string> ids;
    v1::ListJobsRequest request;
    request.set_page_size(1'000);
    v1::ListJobsResponse response;
    do {
      const auto context = MakeContext(kDeadline, "");
      request.set_page_token(response.next_page_token());
      const grpc::Status status = stub->ListJobs(context.get(), request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      for (const v1::Job& job : response.jobs()) ids.push_back(job.id());
    } while (!response.next_page_token().empty());
    return ids;
  }

  // A number from the coordinator's /proc/<pid>/status, e.g. "VmHWM" in KiB.
  int64_t Status(const std::string& name) const {
    std::ifstream file(absl::StrCat("/proc/", process_.pid, "/status"));
    for (std::string line; std::getline(file, line);) {
      int64_t value = -1;
      if (absl::StartsWith(line, name + ":")) {
        std::istringstream(line.substr(name.size() + 1)) >> value;
        return value;
      }
    }
    return -1;
  }
  int64_t Descriptors() const {
    std::error_code error;
    const std::filesystem::directory_iterator all(absl::StrCat("/proc/", process_.pid, "/fd"),
                                                  error);
    return std::distance(begin(all), end(all));
  }

  std::filesystem::path state_dir() const { return folder_ / "state"; }

  TempDir folder_;
  ProcessIdentity process_;
  std::string metrics_address_;
};

// $NSA_FAULT_SUBMITS sets another number of submits, e.g. for a slow machine.
TEST_F(LoadFaults, TenThousandSubmitsFromFiftyClientsAreTenThousandJobs) {
  constexpr int kClients = 50;
  const char* const asked = std::getenv("NSA_FAULT_SUBMITS");
  int submits = 10'000;
  ASSERT_TRUE(asked == nullptr || absl::SimpleAtoi(asked, &submits)) << asked;
  const int each = submits / kClients;
  Start();
  std::vector<std::vector<std::string>> ids(kClients);
  std::atomic<bool> done = false;
  std::atomic<int> answered = 0;
  const absl::Duration began = RealClock().Monotonic();
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] { ids[client] = SubmitMany(client, each); });
  }
  std::thread bystander([&] {
    const auto stub = Connect();
    while (!done) {
      if (Answers(stub.get())) ++answered;
      absl::SleepFor(absl::Milliseconds(20));
    }
  });
  for (std::thread& client : clients) client.join();
  RecordProperty(
      "submits_per_second",
      absl::StrCat(each * kClients / absl::ToDoubleSeconds(RealClock().Monotonic() - began)));
  done = true;
  bystander.join();
  EXPECT_GT(answered, 0);

  std::set<std::string> acknowledged;
  for (const auto& of_client : ids) acknowledged.insert(of_client.begin(), of_client.end());
  EXPECT_EQ(acknowledged.size(), static_cast<size_t>(each * kClients));
  const auto stub = Connect();
  std::vector<std::string> listed = ListAll(stub.get());
  EXPECT_EQ(listed.size(), acknowledged.size()) << "none twice";
  EXPECT_EQ(std::set<std::string>(listed.begin(), listed.end()), acknowledged) << "none lost";
  EXPECT_LT(Status("VmHWM"), 512 << 10) << "KiB";
  RecordProperty("peak_kib", absl::StrCat(Status("VmHWM")));

  Kill();
  const absl::Duration killed = RealClock().Monotonic();
  Start();
  EXPECT_LT(RealClock().Monotonic() - killed, absl::Seconds(10)) << "recovery";
  listed = ListAll(Connect().get());
  EXPECT_EQ(listed.size(), acknowledged.size());
  EXPECT_EQ(std::set<std::string>(listed.begin(), listed.end()), acknowledged);
}

TEST_F(LoadFaults, ThousandsOfIdleConnectionsAreDroppedAndDisturbNobody) {
  constexpr int kConnections = 5'000;
  constexpr int kHeld = 256;  // without a call, of one user; GateLimits::OfUnixSocket()
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kConnections + 1'000) GTEST_SKIP() << "descriptors: " << limit.rlim_max;
  Start();
  const auto old_client = Connect();
  ASSERT_TRUE(Answers(old_client.get()));
  const int64_t before = Descriptors();
  sockaddr_un address{.sun_family = AF_UNIX};
  const std::string path = (state_dir() / "coordinator.sock").string();
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const auto open_all = [&] {
    std::vector<Fd> connections;
    for (int i = 0; i < kConnections; ++i) {
      Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      // connect() waits while the backlog is full.
      EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
      connections.push_back(std::move(fd));
      if (i % 500 == 0) Answers(old_client.get());
    }
    return connections;
  };
  const auto given_back = [&] { return Descriptors() < before + 100; };

  // First the client closes the connections.
  std::vector<Fd> connections = open_all();
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return Descriptors() < before + kHeld + 100; }));
  EXPECT_TRUE(Answers(old_client.get()));
  EXPECT_TRUE(Answers(Connect().get())) << "a new client beside all those";
  EXPECT_LT(Status("VmHWM"), 512 << 10) << "KiB";
  RecordProperty("peak_kib", absl::StrCat(Status("VmHWM")));
  connections.clear();
  const absl::Duration closed = RealClock().Monotonic();
  EXPECT_TRUE(Answers(Connect().get()));
  EXPECT_LT(RealClock().Monotonic() - closed, absl::Seconds(5));
  EXPECT_TRUE(Within(absl::Minutes(1), given_back)) << Descriptors();

  // Then they stay open: the server closes connections that send nothing.
  connections = open_all();
  EXPECT_TRUE(Within(absl::Minutes(1), given_back)) << Descriptors();
  EXPECT_TRUE(Answers(old_client.get())) << "a client that has spoken stays";
  EXPECT_TRUE(Answers(Connect().get()));
}

TEST_F(LoadFaults, AFastScrapeOverTenThousandJobsIsBoundedAndDisturbsNobody) {
  constexpr int kJobs = 10'000;
  constexpr int kScrapers = 8;
  constexpr int kScrapes = 50;
  FillStore(kJobs);
  Start();
  const std::string waiting = absl::StrCat("nsa_jobs{state=\"QUEUED\"} ", kJobs / 2);
  const std::string ended = absl::StrCat("nsa_jobs{state=\"SUCCEEDED\"} ", kJobs / 2);
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    const std::string page = HttpGet(metrics_address_, "/metrics");
    return absl::StrContains(page, waiting) && absl::StrContains(page, ended);
  }));
  const int64_t before = Status("VmRSS");
  std::atomic<bool> done = false;
  std::atomic<int> answered = 0;
  std::atomic<int64_t> slowest_ms = 0;
  std::thread bystander([&] {
    const auto stub = Connect();
    while (!done) {
      if (Answers(stub.get())) ++answered;
    }
  });
  std::vector<std::thread> scrapers;
  for (int s = 0; s < kScrapers; ++s) {
    scrapers.emplace_back([&] {
      for (int i = 0; i < kScrapes; ++i) {
        const absl::Duration start = RealClock().Monotonic();
        const std::string page = HttpGet(metrics_address_, "/metrics");
        const int64_t took = absl::ToInt64Milliseconds(RealClock().Monotonic() - start);
        for (int64_t seen = slowest_ms; took > seen;) slowest_ms.compare_exchange_weak(seen, took);
        // Only jobs that have run lately have series, however many jobs the store holds.
        EXPECT_LT(page.size(), 256u << 10);
        EXPECT_THAT(page.substr(0, 20), HasSubstr(" 200 ")) << page.substr(0, 200);
        EXPECT_TRUE(absl::StrContains(page, waiting) && absl::StrContains(page, ended));
      }
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
  done = true;
  bystander.join();
  RecordProperty("slowest_scrape_ms", absl::StrCat(slowest_ms.load()));
  EXPECT_LT(slowest_ms, 10'000) << "Prometheus gives up after its scrape_timeout of 10 s";
  EXPECT_GT(answered, 0);
  EXPECT_LT(Status("VmRSS") - before, 64 << 10) << "KiB";
}

}  // namespace
}  // namespace nsa
