// Traces as files, and what the status page's marks become in them.
#include "worker/train/profile/trace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/profile/read_trace.h"
#include "worker/train/profile/host_recorder.h"

namespace nsa::train {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json ReadBack(const Trace& trace, const TraceHeader& header) {
  const TempDir folder;
  EXPECT_OK(WriteTrace(trace, header, folder / "t.json.gz"));
  EXPECT_FALSE(std::filesystem::exists(folder / "t.json.gz.tmp"));
  return ReadTrace(folder / "t.json.gz");
}

// The events that are ranges, in the order of the file.
std::vector<json> Ranges(const json& file) {
  std::vector<json> ranges;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X") ranges.push_back(event);
  }
  return ranges;
}

TEST(Trace, IsValidJsonWhateverTheNamesAre) {
  Trace trace;
  const std::string odd = "quote \" backslash \\ line\n tab\t null";
  trace.Add({.kind = TraceKind::kKernel, .name = trace.Name(odd), .begin = 1'000, .end = 3'500});
  trace.Add({.kind = TraceKind::kKernel, .name = trace.Name("no \xff utf-8"), .begin = 4'000});
  const json file = ReadBack(trace, {.rank = 3,
                                     .host = "a \"host\"",
                                     .first_step = 7,
                                     .last_step = 9,
                                     .base_monotonic = 1'000,
                                     .base_unix_nanos = 1'700'000'000'123'456'789});
  const std::vector<json> ranges = Ranges(file);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0]["name"], odd);
  EXPECT_EQ(ranges[0]["ts"], 0.0);
  EXPECT_EQ(ranges[0]["dur"], 2.5);
  EXPECT_EQ(ranges[0]["pid"], 3);
  EXPECT_THAT(ranges[1]["name"].get<std::string>(), HasSubstr("utf-8"));
  EXPECT_EQ(file["otherData"]["host"], "a \"host\"");
  EXPECT_EQ(file["otherData"]["base_unix_nanos"], "1700000000123456789") << "a double is too short";
  EXPECT_EQ(file["traceEvents"][0]["args"]["name"], "rank 3 (a \"host\")");
}

TEST(Trace, HasOneEventALine) {
  Trace trace;
  for (int i = 0; i < 3; ++i) {
    trace.Add({.kind = TraceKind::kKernel, .name = trace.Name(absl::StrCat("k\n", i))});
  }
  const TempDir folder;
  ASSERT_OK(WriteTrace(trace, {}, folder / "t"));
  std::vector<std::string> lines = absl::StrSplit(Unzipped(folder / "t"), '\n');
  ASSERT_GE(lines.size(), 6u);
  EXPECT_TRUE(json::parse(lines.front() + "]}").is_object());
  EXPECT_EQ(lines[lines.size() - 2], "]}");
  for (size_t i = 1; i + 2 < lines.size(); ++i) {
    if (lines[i].back() == ',') lines[i].pop_back();
    EXPECT_TRUE(json::parse(lines[i]).is_object()) << lines[i];
  }
}

TEST(Trace, SaysHowAKernelWasLaunchedAndReadsItsName) {
  Trace trace;
  const int32_t launch = trace.Launch({.grid = {1, 2, 3},
                                       .block = {128, 1, 1},
                                       .registers = 40,
                                       .shared_bytes = 1024,
                                       .graph_node = 77});
  trace.Add({.kind = TraceKind::kGpuKernel,
             .track = kStreamTrack + 7,
             .name = trace.Name("_ZN3nsa12_GLOBAL__N_14MarkILNS_6BranchE1ELi64EEEvPiPFvvE"),
             .launch = launch});
  const json kernel = Ranges(ReadBack(trace, {})).at(0);
  EXPECT_EQ(kernel["name"], "nsa::Mark<(nsa::Branch)1, 64>") << "without its parameters";
  EXPECT_EQ(kernel["cat"], "gpu_kernel");
  EXPECT_EQ(kernel["tid"], 107);
  EXPECT_EQ(kernel["args"]["grid"], json({1, 2, 3}));
  EXPECT_EQ(kernel["args"]["registers"], 40);
  EXPECT_EQ(kernel["args"]["shared_bytes"], 1024);
  EXPECT_EQ(kernel["args"]["graph_node"], 77);
}

TEST(Trace, CountsWhatItHasNoRoomForAndKeepsEveryStep) {
  Trace trace(/*most_events=*/2);
  for (int i = 0; i < 5; ++i) trace.Add({.kind = TraceKind::kKernel, .name = trace.Name("k")});
  trace.Add({.kind = TraceKind::kStep, .name = trace.Name("step 1")});
  EXPECT_EQ(trace.dropped(), 3);
  const json file = ReadBack(trace, {});
  EXPECT_EQ(file["otherData"]["dropped_events"], 3);
  ASSERT_EQ(Ranges(file).size(), 3u);
  EXPECT_EQ(Ranges(file)[2]["name"], "step 1");
}

TEST(Trace, ThatCannotBeWrittenLeavesNoFile) {
  const TempDir folder;
  EXPECT_FALSE(WriteTrace(Trace(), {}, folder / "none" / "t.json.gz").ok());
  if (std::filesystem::exists("/dev/full")) {
    std::filesystem::create_symlink("/dev/full", folder / "t.json.gz.tmp");
    Trace trace;
    trace.Add({.name = trace.Name("s")});
    EXPECT_THAT(WriteTrace(trace, {}, folder / "t.json.gz"),
                StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_FALSE(std::filesystem::exists(folder / "t.json.gz"));
  }
}

// A page and a recorder of it, with a clock that advances by 10 ns at each look.
class HostRecorderTest : public ::testing::Test {
 protected:
  HostRecorderTest() { page_.SetObserver(&recorder_); }

  // "name begin-end", in the order in which the ranges ended.
  std::vector<std::string> Names(TraceKind kind) const {
    std::vector<std::string> names;
    for (const TraceEvent& event : trace_.events()) {
      if (event.kind == kind) names.push_back(trace_.name(event.name));
    }
    return names;
  }
  std::vector<TraceEvent> Of(TraceKind kind) const {
    std::vector<TraceEvent> found;
    for (const TraceEvent& event : trace_.events()) {
      if (event.kind == kind) found.push_back(event);
    }
    return found;
  }

  int64_t now_ = 0;
  int64_t bytes_ = 100;
  Trace trace_;
  HostRecorder recorder_{
      &trace_, {{"host memory", [this] { return bytes_++; }, 25}}, [this] { return now_ += 10; }};
  StatusPage page_;
};

TEST_F(HostRecorderTest, NestsKernelsInLayersInPhasesInSteps) {
  page_.SetPhase(Phase::kData);
  EXPECT_TRUE(trace_.events().empty()) << "before the first step";
  recorder_.BeginStep(5);
  page_.SetPhase(Phase::kForward);
  page_.SetKernel("embedding");
  for (int layer = 0; layer < 2; ++layer) {
    page_.SetLayer(layer);
    page_.SetKernel("matmul");
    page_.SetKernel("window_attention");
  }
  page_.SetLayer(-1);
  page_.SetPhase(Phase::kBackward);
  recorder_.BeginStep(6);
  page_.SetPhase(Phase::kOptimizer);
  recorder_.EndStep();
  EXPECT_THAT(Names(TraceKind::kStep), ElementsAre("step 5", "step 6"));
  EXPECT_THAT(Names(TraceKind::kPhase), ElementsAre("forward", "backward", "optimizer"));
  EXPECT_THAT(Names(TraceKind::kLayer), ElementsAre("layer 0", "layer 1"));
  EXPECT_THAT(Names(TraceKind::kKernel),
              ElementsAre("embedding", "matmul", "window_attention", "matmul", "window_attention"));
  const auto inside = [](const TraceEvent& a, const std::vector<TraceEvent>& outer) {
    return std::ranges::count_if(
        outer, [&](const TraceEvent& o) { return o.begin <= a.begin && a.end <= o.end; });
  };
  for (const TraceEvent& layer : Of(TraceKind::kLayer)) {
    EXPECT_EQ(inside(layer, Of(TraceKind::kPhase)), 1);
  }
  for (const TraceEvent& phase : Of(TraceKind::kPhase)) {
    EXPECT_EQ(inside(phase, Of(TraceKind::kStep)), 1);
  }
  const std::vector<TraceEvent> steps = Of(TraceKind::kStep);
  EXPECT_EQ(steps[0].end, steps[1].begin) << "nothing between two steps is lost";
}

TEST_F(HostRecorderTest, APhaseThatIsShownAgainGoesOn) {
  recorder_.BeginStep(1);
  for (int mark = 0; mark < 3; ++mark) {
    page_.SetPhase(Phase::kForward);
    page_.SetLayer(2);
    page_.SetKernel("gate");
  }
  recorder_.EndStep();
  EXPECT_THAT(Names(TraceKind::kPhase), ElementsAre("forward"));
  EXPECT_THAT(Names(TraceKind::kLayer), ElementsAre("layer 2"));
  EXPECT_THAT(Names(TraceKind::kKernel), ElementsAre("gate", "gate", "gate"));
}

TEST_F(HostRecorderTest, ALayerEndsWithItsPhaseAndBeginsAgainInTheNext) {
  recorder_.BeginStep(1);
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    page_.SetPhase(phase);
    page_.SetLayer(2);
  }
  recorder_.EndStep();
  const std::vector<TraceEvent> phases = Of(TraceKind::kPhase), layers = Of(TraceKind::kLayer);
  ASSERT_EQ(phases.size(), 2u);
  ASSERT_EQ(layers.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_LE(phases[i].begin, layers[i].begin);
    EXPECT_LE(layers[i].end, phases[i].end);
  }
}

TEST_F(HostRecorderTest, CollectivesHaveATrackOfTheirOwn) {
  recorder_.BeginStep(1);
  page_.EnterCollective("all_reduce");
  page_.SetKernel("k");
  page_.LeaveCollective();
  recorder_.EndStep();
  ASSERT_THAT(Names(TraceKind::kCollective), ElementsAre("all_reduce"));
  EXPECT_EQ(Of(TraceKind::kCollective)[0].track, kCollectiveTrack);
  EXPECT_EQ(Of(TraceKind::kKernel)[0].track, kTrainingTrack);
}

TEST_F(HostRecorderTest, SamplesMemoryNoMoreOftenThanTheGaugeSays) {
  recorder_.BeginStep(1);
  for (int i = 0; i < 10; ++i) page_.SetPhase(i % 2 == 0 ? Phase::kForward : Phase::kBackward);
  recorder_.EndStep();
  const std::vector<TraceEvent> samples = Of(TraceKind::kMemory);
  ASSERT_GE(samples.size(), 3u);
  for (size_t i = 1; i < samples.size(); ++i) {
    EXPECT_GE(samples[i].begin - samples[i - 1].begin, 25);
    EXPECT_EQ(samples[i].value, samples[i - 1].value + 1);
  }
}

}  // namespace
}  // namespace nsa::train
