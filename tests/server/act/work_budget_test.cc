// How long a request or a start may read what a job names.
#include "server/act/work_budget.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "server/act/launch_check.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class WorkBudgetTest : public Harness {
 protected:
  // A caller who waits, while a minute passes whenever the work looks whether somebody does: a disk
  // that hardly answers.
  std::function<bool()> OnASlowDisk() {
    return [this] {
      ++looks_;
      clock().Advance(absl::Minutes(1));
      return false;
    };
  }

  absl::Status SubmitSlowly(const v1::JobSpec& spec, bool validate_only) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_validate_only(validate_only);
    return control().Submit(request, OnASlowDisk()).status();
  }

  // With data that a pattern names.
  v1::JobSpec WithFiles(int files) {
    v1::JobSpec spec = Spec("files");
    for (int i = 0; i < files; ++i) std::ofstream(folder_ / absl::StrCat(i, ".txt")) << "text\n";
    spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
    spec.mutable_data()->add_path((folder_ / "*.txt").string());
    return spec;
  }

  int looks_ = 0;
};

TEST_F(WorkBudgetTest, EndsByTimeOrWhenNobodyWaits) {
  bool left = false;
  const WorkBudget budget(clock(), absl::Seconds(10), [&left] { return left; });
  EXPECT_OK(budget.Check());
  clock().Advance(absl::Seconds(9));
  EXPECT_FALSE(budget.Over());
  clock().Advance(absl::Seconds(1));
  EXPECT_TRUE(budget.Over());
  EXPECT_THAT(budget.Check(), StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("longer to read than 10 s")));
  left = true;
  EXPECT_THAT(budget.Check(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(WorkBudgetTest, ARequestEndsSoonAfterItsTime) {
  const v1::JobSpec spec = WithFiles(3'000);
  for (const bool validate_only : {true, false}) {
    looks_ = 0;
    EXPECT_THAT(SubmitSlowly(spec, validate_only),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("preflight: "), HasSubstr("120 s"))));
    EXPECT_LT(looks_, 30) << "nothing more is opened";
  }
  EXPECT_FALSE(store().Find("files").ok()) << "nothing is submitted";
}

TEST_F(WorkBudgetTest, AResumeWithAnotherSpecEndsSoonAfterItsTimeAndForACallerWhoHasLeft) {
  const std::string id = Submit(Spec("demo"));
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  v1::ResumeJobRequest request;
  request.set_job(id);
  *request.mutable_spec() = Get(id).spec();
  EXPECT_THAT(control().Resume(request, {}, OnASlowDisk()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_LT(looks_, 30);
  EXPECT_THAT(control().Resume(request, {}, [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(Get(id).state(), v1::Job::STATE_STOPPED);
  EXPECT_OK(control().Resume(request));
}

// The matches of a pattern are checked one by one.
TEST_F(WorkBudgetTest, CheckingThePathsEndsToo) {
  const v1::JobSpec spec = WithFiles(2'000);
  const std::filesystem::path root = std::filesystem::canonical(folder_.path());
  const PathGuard guard({root});
  for (const int most : {0, 100}) {
    int looks = 0;
    const JobFileScope scope(guard.FilesOf("", [&] { return looks++ >= most; }));
    EXPECT_THAT(guard.CheckSpec(spec), StatusIs(absl::StatusCode::kCancelled));
    EXPECT_LE(looks, most + 3);
  }
}

TEST_F(WorkBudgetTest, AStartThatReadsForLongIsRefusedAndMayPassLater) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  ASSERT_OK(agent.Beat());
  v1::StoredJob job = **store().Find(id);
  job.add_placements()->set_node("a");
  const auto check = [&](std::function<bool()> left) {
    const WorkBudget work(clock(), kLaunchWork, std::move(left));
    return CheckLaunch(job, life().fleet, life().paths, work);
  };
  EXPECT_THAT(check(nullptr).problem, Not(HasSubstr("longer to read")));
  const LaunchCheck slow = check(OnASlowDisk());
  EXPECT_FALSE(slow.accepted);
  EXPECT_TRUE(slow.passing);
  EXPECT_THAT(slow.problem, HasSubstr("longer to read than 300 s"));
  EXPECT_FALSE(check([] { return true; }).accepted) << "the coordinator goes down";
}

}  // namespace
}  // namespace nsa::server
