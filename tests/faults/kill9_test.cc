// kill -9 of a worker at a random step, of the coordinator, of the agent, of all three: the job
// ends SUCCEEDED, and its losses equal those of an uninterrupted run bit for bit.
//
// $NSA_KILL_REPEATS jobs for each kind of kill (default 1); $NSA_KILL_SEED chooses the moments;
// $NSA_KILL_WORKER names another worker program in the same folder (fake_worker runs the same test
// in half the time).
#include <map>
#include <random>
#include <set>

#include "common/run/journal.h"
#include "tests/testing/service_fixture.h"
#include "tests/testing/small_job.h"

namespace nsa {
namespace {

constexpr char kProgram[] = "nsa-worker";

int FromEnvironment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

enum class Victim { kWorker, kCoordinator, kAgent, kAll };

class Kill9 : public ::testing::TestWithParam<Victim> {
 protected:
  static void SetUpTestSuite() {
    const char* worker = std::getenv("NSA_KILL_WORKER");
    service_ = new ServiceFixture(worker != nullptr ? worker : kProgram);
    reference_ = new Reported[kRanks];
    const std::string id = service_->Submit(SmallJob(service_->folder() / "unbroken"));
    const v1::Job job = service_->WaitForEnd(id);
    ASSERT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message() << "\n" << service_->Logs();
    for (int rank = 0; rank < kRanks; ++rank) {
      reference_[rank] = Collect(service_, id, rank);
      ASSERT_EQ(reference_[rank].steps.size(), static_cast<size_t>(kSteps));
    }
  }
  static void TearDownTestSuite() {
    delete service_;
    delete[] reference_;
  }

  bool EndsWorkers() const { return GetParam() == Victim::kWorker || GetParam() == Victim::kAll; }

  // Whether the kill came after a rank's last record, when it no longer interrupts training.
  bool CameTooLate(const std::string& id) const {
    for (int rank = 0; rank < kRanks; ++rank) {
      JournalReader journal(service_->Dir(id, 1, rank).journal());
      auto record = journal.Next();
      for (; record.ok() && record->has_value(); record = journal.Next()) {
        if ((*record)->has_finished()) return true;
      }
    }
    return false;
  }

  // Submits a job and kills the victim at this step. Returns "" when the job had finished before.
  std::string SubmitAndKill(const std::filesystem::path& out_dir, int at) {
    const std::string id = service_->Submit(SmallJob(out_dir));
    EXPECT_TRUE(service_->WaitForStep(id, 0, at));
    KillVictim(id);
    if (!EndsWorkers() || !CameTooLate(id)) return id;
    service_->WaitForEnd(id);
    return "";
  }

  void KillVictim(const std::string& id) {
    if (GetParam() == Victim::kCoordinator || GetParam() == Victim::kAll) {
      service_->KillCoordinator();
    }
    if (GetParam() == Victim::kAgent || GetParam() == Victim::kAll) service_->KillAgent();
    // Kills one rank, or the whole gang.
    const int only = GetParam() == Victim::kWorker ? Pick(0, kRanks - 1) : -1;
    for (int rank = 0; rank < kRanks && EndsWorkers(); ++rank) {
      if (only >= 0 && rank != only) continue;
      const auto worker = service_->Worker(id, 1, rank);
      ASSERT_OK(worker);
      SignalProcess(*worker, SIGKILL).IgnoreError();  // CameTooLate() checks whether it had ended.
    }
    if (GetParam() == Victim::kCoordinator || GetParam() == Victim::kAll) {
      absl::SleepFor(absl::Milliseconds(Pick(0, 600)));
      service_->StartCoordinator();
    }
  }

  static int Pick(int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(*random_);
  }

  static ServiceFixture* service_;
  static Reported* reference_;
  static std::mt19937* random_;
};

ServiceFixture* Kill9::service_ = nullptr;
Reported* Kill9::reference_ = nullptr;
std::mt19937* Kill9::random_ =
    new std::mt19937(static_cast<unsigned>(FromEnvironment("NSA_KILL_SEED", 1)));

TEST_P(Kill9, TheJobSucceedsWithTheLossesOfAnUnbrokenRun) {
  const int repeats = FromEnvironment("NSA_KILL_REPEATS", 1);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto out_dir =
        service_->folder() / absl::StrCat("broken-", static_cast<int>(GetParam()), "-", repeat);
    const int at = Pick(1, static_cast<int>(kSteps) - 8);
    SCOPED_TRACE(absl::StrCat("repeat ", repeat, ", killed at step ", at));
    std::string id;
    for (int attempt = 0; attempt < 5 && id.empty(); ++attempt) {
      id = SubmitAndKill(absl::StrCat(out_dir.string(), "-", attempt), at);
    }
    ASSERT_FALSE(id.empty()) << "five jobs in a row ended before their kill";
    const v1::Job job = service_->WaitForEnd(id);
    ASSERT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message() << "\n" << service_->Logs();
    EXPECT_EQ(job.restarts(), EndsWorkers() ? 1 : 0);
    EXPECT_EQ(job.generation(), EndsWorkers() ? 2 : 1);
    for (const v1::JobEvent& event : service_->Events(id)) {
      EXPECT_NE(event.reason(), "CHECKPOINT_FAILED") << "no disk failed: " << event.text();
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const Reported run = Collect(service_, id, rank);
      EXPECT_EQ(run.steps, reference_[rank].steps) << "rank " << rank;
      EXPECT_EQ(run.evals, reference_[rank].evals) << "rank " << rank;
      if (!EndsWorkers()) {
        EXPECT_EQ(run.records_of_generation, (std::map<int64_t, int64_t>{{1, kSteps}}));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, Kill9,
                         ::testing::Values(Victim::kWorker, Victim::kCoordinator, Victim::kAgent,
                                           Victim::kAll),
                         [](const ::testing::TestParamInfo<Victim>& victim) -> std::string {
                           switch (victim.param) {
                             case Victim::kWorker:
                               return "Worker";
                             case Victim::kCoordinator:
                               return "Coordinator";
                             case Victim::kAgent:
                               return "Agent";
                             default:
                               return "All";
                           }
                         });

}  // namespace
}  // namespace nsa
