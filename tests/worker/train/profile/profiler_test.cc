// Which steps a rank records, and what it answers to requests.
#include "worker/train/profile/profiler.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/profile/read_trace.h"

namespace nsa::train {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::ProfileRequest Request(const std::string& id, int32_t steps) {
  v1::ProfileRequest request;
  request.set_id(id);
  request.set_steps(steps);
  return request;
}

// A GPU that ran one kernel in each nanosecond.
class FakeGpu final : public GpuRecorder {
 public:
  absl::Status Start() override {
    ++starts;
    return absl::OkStatus();
  }
  absl::Status Stop(int64_t begin, int64_t end, Trace* trace) override {
    ++stops;
    EXPECT_LT(begin, end);
    trace->Add({.kind = TraceKind::kGpuKernel,
                .track = kStreamTrack,
                .name = trace->Name("kernel"),
                .begin = begin,
                .end = end});
    return absl::OkStatus();
  }
  void Abandon() override { ++abandoned; }

  int starts = 0, stops = 0, abandoned = 0;
};

class ProfilerTest : public ::testing::Test {
 protected:
  // One step of a run of one rank, as the trainer makes it.
  void Step() {
    profiler_.StepBegins(++step_);
    page_.SetPhase(Phase::kData);
    page_.SetPhase(Phase::kForward);
    if (profiler_.ticket() != 0) profiler_.Agreed();
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }

  std::filesystem::path FileOf(const std::string& id) const {
    return RunDir{folder_.path()}.profile(id);
  }
  json Read(const std::string& id) const { return ReadTrace(FileOf(id)); }

  const TempDir folder_;
  StatusPage page_;
  int64_t now_ = 0;
  int64_t step_ = 0;
  Profiler profiler_{{.page = &page_,
                      .rank = 1,
                      .run_dir = RunDir{folder_.path()},
                      .now = [this] { return now_ += 1000; },
                      .unix_now = [] { return int64_t{1'700'000'000'000'000'000}; }}};
};

TEST_F(ProfilerTest, RecordsTheNextWholeStepsAndNoOthers) {
  Steps(4);
  ASSERT_OK(profiler_.Request(Request("a", 3)));
  EXPECT_EQ(profiler_.ticket(), profiler_.ticket());
  Steps(6);
  profiler_.Close(true);
  const json file = Read("a");
  EXPECT_THAT(NamesOf(RangesOf(file, "step")), ElementsAre("step 6", "step 7", "step 8"));
  EXPECT_EQ(file["otherData"]["first_step"], 6);
  EXPECT_EQ(file["otherData"]["last_step"], 8);
  EXPECT_THAT(file["otherData"]["notes"], IsEmpty());
  EXPECT_OK(profiler_.Request(Request("a", 3))) << "the same request again";
  EXPECT_EQ(profiler_.ticket(), 0) << "and it is not recorded again";
}

TEST_F(ProfilerTest, AnotherRequestEndsTheTraceInProgress) {
  ASSERT_OK(profiler_.Request(Request("a", 50)));
  Steps(3);
  ASSERT_OK(profiler_.Request(Request("b", 2)));
  EXPECT_OK(profiler_.Request(Request("a", 50))) << "it is in progress until the step ends";
  EXPECT_EQ(profiler_.ticket(), 0) << "the ranks begin together, so not while one still records";
  Step();
  EXPECT_THAT(profiler_.Request(Request("a", 50)),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("rank 1: another trace took")));
  Steps(3);
  profiler_.Close(true);
  EXPECT_THAT(NamesOf(RangesOf(Read("b"), "step")), ElementsAre("step 5", "step 6"));
  EXPECT_FALSE(std::filesystem::exists(FileOf("a")));
}

TEST_F(ProfilerTest, TakesAnotherTraceAfterwards) {
  ASSERT_OK(profiler_.Request(Request("a", 2)));
  Steps(5);
  profiler_.Close(true);
  ASSERT_OK(profiler_.Request(Request("b", 1)));
  Steps(3);
  profiler_.Close(true);
  EXPECT_THAT(NamesOf(RangesOf(Read("b"), "step")), ElementsAre("step 7"));
  EXPECT_FALSE(std::filesystem::exists(FileOf("a"))) << "traces that nobody fetched are removed";
}

TEST_F(ProfilerTest, ARequestThatTheRanksHaveNotAgreedOnIsReplaced) {
  ASSERT_OK(profiler_.Request(Request("a", 2)));
  const double first = profiler_.ticket();
  ASSERT_OK(profiler_.Request(Request("b", 2)));
  EXPECT_NE(profiler_.ticket(), first);
  EXPECT_NE(profiler_.ticket(), 0);
}

TEST_F(ProfilerTest, RefusesWhatIsNoRequest) {
  for (const int32_t steps : {-1, 0, 101}) {
    EXPECT_THAT(profiler_.Request(Request("a", steps)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("(from 1 to 100)")));
  }
  for (const char* id : {"", "../escape", "a/b", "a b"}) {
    EXPECT_THAT(profiler_.Request(Request(id, 1)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("profile: id")));
  }
  EXPECT_THAT(profiler_.Request(Request(std::string(65, 'a'), 1)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(profiler_.ticket(), 0);
}

TEST_F(ProfilerTest, WritesWhatThereIsWhenTheRunEnds) {
  ASSERT_OK(profiler_.Request(Request("a", 50)));
  Steps(3);
  profiler_.Close(true);
  const json file = Read("a");
  EXPECT_THAT(NamesOf(RangesOf(file, "step")), ElementsAre("step 2", "step 3"));
  EXPECT_THAT(file["otherData"]["notes"], ElementsAre("the run ended after 2 of 50 steps"));
}

TEST_F(ProfilerTest, SaysSoWhenTheRunEndsBeforeTheFirstStepOrTheFolderIsGone) {
  ASSERT_OK(profiler_.Request(Request("a", 1)));
  Step();
  profiler_.Close(true);
  EXPECT_THAT(profiler_.Request(Request("a", 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ended before the first")));
  ASSERT_OK(profiler_.Request(Request("b", 1)));
  Step();
  std::filesystem::remove_all(folder_.path());
  Steps(2);
  profiler_.Close(true);
  EXPECT_FALSE(profiler_.Request(Request("b", 1)).ok());
  std::filesystem::create_directories(folder_.path());
}

TEST_F(ProfilerTest, OnAGpuTheFirstStepPreparesAndTheGraphIsCapturedBeforeAndAfter) {
  FakeGpu gpu;
  int captures = 0;
  profiler_.SetDevice(
      {}, [&]() -> absl::StatusOr<GpuRecorder*> { return &gpu; }, [&] { ++captures; });
  ASSERT_OK(profiler_.Request(Request("a", 2)));
  Steps(2);
  EXPECT_EQ(gpu.starts, 1);
  EXPECT_EQ(captures, 1);
  Steps(3);
  EXPECT_EQ(gpu.stops, 1);
  EXPECT_EQ(captures, 2);
  profiler_.Close(true);
  const json file = Read("a");
  EXPECT_THAT(NamesOf(RangesOf(file, "step")), ElementsAre("step 3", "step 4"));
  EXPECT_THAT(NamesOf(RangesOf(file, "gpu_kernel")), ElementsAre("kernel"));
}

TEST_F(ProfilerTest, WithoutCuptiTheTraceSaysWhyThereAreNoKernels) {
  int captures = 0;
  profiler_.SetDevice(
      {}, []() -> absl::StatusOr<GpuRecorder*> { return absl::NotFoundError("CUPTI: not found"); },
      [&] { ++captures; });
  ASSERT_OK(profiler_.Request(Request("a", 1)));
  Steps(4);
  profiler_.Close(true);
  EXPECT_EQ(captures, 0) << "nothing to prepare";
  const json file = Read("a");
  EXPECT_THAT(NamesOf(RangesOf(file, "step")), ElementsAre("step 3"));
  EXPECT_THAT(file["otherData"]["notes"], ElementsAre("no kernels: CUPTI: not found"));
}

TEST_F(ProfilerTest, AFailedGpuIsNotWaitedFor) {
  FakeGpu gpu;
  profiler_.SetDevice(
      {}, [&]() -> absl::StatusOr<GpuRecorder*> { return &gpu; }, [] {});
  ASSERT_OK(profiler_.Request(Request("a", 9)));
  Steps(3);
  profiler_.Close(/*healthy=*/false);
  EXPECT_EQ(gpu.stops, 0);
  EXPECT_EQ(gpu.abandoned, 1);
  EXPECT_THAT(Read("a")["otherData"]["notes"],
              ElementsAre(HasSubstr("no kernels"), HasSubstr("step 3 is cut off"),
                          HasSubstr("after 1 of 9 steps")));
}

TEST(OpenGpuRecorder, SaysWhichLibraryIsMissingAndHowToGetIt) {
  const auto recorder = OpenGpuRecorder("/nowhere/libcupti.so");
  EXPECT_FALSE(recorder.ok());
  EXPECT_THAT(std::string(recorder.status().message()), HasSubstr("CUPTI: "));
  EXPECT_THAT(std::string(recorder.status().message()), HasSubstr("; "));
}

TEST(IsCollectiveKernel, KnowsTheNamesOfNccl) {
  EXPECT_TRUE(IsCollectiveKernel("ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE(ncclDevKernelArgs)"));
  EXPECT_TRUE(IsCollectiveKernel("ncclKernel_AllReduce_RING_SIMPLE_Sum_float"));
  EXPECT_FALSE(IsCollectiveKernel("nsa::cuda::WindowAttention"));
}

}  // namespace
}  // namespace nsa::train
