// The coordinator is killed (SIGKILL) while jobs are submitted and started: exactly before and
// after each of its commits, and at random moments under many clients. A client that got an answer
// has a job; no client has two; each job has one set of workers and does each step once.
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "tests/testing/paths.h"
#include "tests/testing/service_fixture.h"
#include "tests/testing/small_job.h"

namespace nsa {
namespace {

class SubmitFaults : public ::testing::Test {
 protected:
  SubmitFaults() : service_("fake_worker") {}

  v1::JobSpec Spec(const std::string& name, int ranks) {
    v1::JobSpec spec = SmallJob(service_.folder() / name);
    spec.set_name(name);
    spec.mutable_resources()->set_gpus(ranks);
    (*spec.mutable_labels())["fake.step_ms"] = "2";
    return spec;
  }

  // Repeats the request until it is answered.
  std::string SubmitUntilAnswered(const v1::JobSpec& spec, const std::string& request_id) {
    const absl::Duration give_up = RealClock().Monotonic() + absl::Minutes(1);
    while (RealClock().Monotonic() < give_up) {
      v1::SubmitJobResponse response;
      const grpc::Status status = service_.TrySubmit(spec, request_id, &response);
      if (status.ok()) return response.job().id();
      // Any error except UNAVAILABLE is a defect, because the request is valid.
      if (status.error_code() != grpc::UNAVAILABLE) {
        ADD_FAILURE() << request_id << ": " << status.error_message();
        return "";
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    ADD_FAILURE() << request_id << ": not answered";
    return "";
  }

  // Expects that one generation of workers did each step once, and that there was no other
  // generation.
  void ExpectOneWholeRun(const std::string& id, int ranks) {
    const v1::Job job = service_.WaitForEnd(id);
    EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message() << service_.Logs();
    EXPECT_EQ(job.generation(), 1);
    EXPECT_EQ(job.restarts(), 0);
    int submitted = 0;
    for (const v1::JobEvent& event : service_.Events(id)) {
      if (event.reason() == "SUBMITTED") ++submitted;
    }
    EXPECT_EQ(submitted, 1);
    for (int rank = 0; rank < ranks; ++rank) {
      const Reported run = Collect(&service_, id, rank);
      EXPECT_EQ(run.steps.size(), static_cast<size_t>(kSteps)) << "rank " << rank;
      EXPECT_EQ(run.records_of_generation, (std::map<int64_t, int64_t>{{1, kSteps}}));
    }
  }

  ServiceFixture service_;
};

// Commit 1 stores the job. The next ones place it, launch it and note that its ranks are up; then
// come records.
TEST_F(SubmitFaults, ACrashBeforeOrAfterAnyCommitLosesAndDoublesNothing) {
  const auto plan = service_.folder() / "crash";
  std::set<std::string> ids;
  for (int commit = 1; commit <= 8; ++commit) {
    for (const std::string when : {"before", "after"}) {
      SCOPED_TRACE(absl::StrCat(when, " commit ", commit));
      service_.KillCoordinator();
      service_.StartCoordinator({{"LD_PRELOAD", TestFile("crash_at_sync.so")},
                                 {"NSA_CRASH_AT_SYNC", plan.string()},
                                 {"ASAN_OPTIONS", "verify_asan_link_order=0"}});
      std::ofstream(plan) << when << " " << commit;
      const std::string name = absl::StrCat("job-", when, "-", commit);
      const v1::JobSpec spec = Spec(name, kRanks);
      v1::SubmitJobResponse first;
      const grpc::Status status = service_.TrySubmit(spec, name, &first);
      const bool answered = status.ok();
      ASSERT_TRUE(answered || status.error_code() == grpc::UNAVAILABLE) << status.error_message();
      ASSERT_EQ(service_.AwaitCoordinator(), SIGKILL);
      // Before the job is on disk, no client may have been told that it is stored.
      if (commit == 1 && when == "before") {
        EXPECT_FALSE(answered);
      }
      std::filesystem::remove(plan);
      service_.StartCoordinator();
      if (commit > 1 || when == "after") {
        ASSERT_EQ(service_.List().size(), ids.size() + 1) << "it was stored";
      }
      const std::string id = SubmitUntilAnswered(spec, name);
      if (answered) {
        EXPECT_EQ(id, first.job().id());
      }
      EXPECT_TRUE(ids.insert(id).second);
      ASSERT_EQ(service_.List().size(), ids.size());
      ExpectOneWholeRun(id, kRanks);
    }
  }
}

TEST_F(SubmitFaults, ACoordinatorKilledAtRandomUnderManyClientsHasEachJobOnce) {
  constexpr int kClients = 4;
  constexpr int kJobsEach = 10;
  constexpr int kKills = 12;
  std::vector<std::vector<std::string>> ids(kClients);
  std::atomic<int> submitted = 0;
  std::atomic<bool> all_killed = false;
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < kJobsEach; ++i) {
        const std::string name = absl::StrCat("job-", client, "-", i);
        const v1::JobSpec spec = Spec(name, 1);
        const std::string id = SubmitUntilAnswered(spec, name);
        EXPECT_EQ(SubmitUntilAnswered(spec, name), id) << "the same request again";
        ids[client].push_back(id);
        ++submitted;
        // The last kills happen while clients still submit.
        while (!all_killed && submitted > kClients * kJobsEach / 2) {
          EXPECT_EQ(SubmitUntilAnswered(spec, name), id);
        }
      }
    });
  }
  std::mt19937 random(20261121);
  for (int kill = 0; kill < kKills; ++kill) {
    absl::SleepFor(absl::Microseconds(std::uniform_int_distribution(0, 150'000)(random)));
    service_.ReplaceCoordinator();
  }
  all_killed = true;
  for (std::thread& client : clients) client.join();
  std::set<std::string> unique;
  for (const auto& of_client : ids) unique.insert(of_client.begin(), of_client.end());
  EXPECT_EQ(unique.size(), static_cast<size_t>(kClients * kJobsEach));
  EXPECT_EQ(service_.List().size(), unique.size()) << "no job that nobody asked for";
  for (const std::string& id : unique) ExpectOneWholeRun(id, 1);
}

}  // namespace
}  // namespace nsa
