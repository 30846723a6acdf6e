#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/telemetry/reporting.h"
#include "worker/train/telemetry/append_file.h"
#include "worker/train/telemetry/formats.h"
#include "worker/train/telemetry/record_queue.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

TEST(Formats, SyntheticDataAfterAFallbackIsShownInEveryLine) {
  v1::WorkerRecord record;
  *record.mutable_step() = Step(5);
  EXPECT_THAT(LogLine(record, 100), testing::Not(HasSubstr("SYNTHETIC")));
  record.mutable_step()->set_data_source(v1::DATA_SOURCE_SYNTHETIC);
  EXPECT_THAT(LogLine(record, 100), HasSubstr("SYNTHETIC data"));
  EXPECT_THAT(TrainingRow(record.step(), 0), HasSubstr(",synthetic,"));
}

// nsa.layers: [win, cmp+sel]: the first layer has one branch, and the second no window.
v1::StepRecord StepOfTwoKindsOfLayers() {
  v1::StepRecord step = Step(10);
  v1::LayerStats* window = step.mutable_layers(0);
  window->clear_gate();
  window->clear_selection();
  window->mutable_audit()->set_window_mass(0.25);
  step.mutable_layers(1)->mutable_audit()->set_selected_mass(0.75);
  step.mutable_layers(1)->mutable_audit()->set_selected_mass_p10(0.5);
  v1::SelectionChoice& choice = *step.mutable_layers(1)->mutable_audit()->mutable_choice();
  choice.set_rows(96);
  choice.set_entropy_ratio(0.9);
  choice.set_neighbour_agreement_ratio(0.8);
  choice.set_free_choices(6000);
  return step;
}

TEST(Formats, ALayerHasNoFiguresOfAGateOrABranchThatItLacks) {
  v1::WorkerRecord record;
  *record.mutable_step() = StepOfTwoKindsOfLayers();
  EXPECT_EQ(SelectionRows(record.step()), "10,1,100,128,64,0.25\n");
  EXPECT_EQ(AuditRows(record.step(), 7),
            "10,0,0,,,0.25,,,,,7.000\n"
            "10,1,0,0.75,0.5,,,0.9,0.8,6000,7.000\n");
  const auto layers = nlohmann::json::parse(HeartbeatLine(record, true, 10, 0))["layers"];
  for (const char* key : {"gate_entropy_mean", "gate_branch_shares", "sel_k_mean"}) {
    EXPECT_FALSE(layers[0].contains(key)) << key;
    EXPECT_TRUE(layers[1].contains(key)) << key;
  }
  EXPECT_TRUE(layers[0].contains("keys_read"));
}

TEST(Formats, TensorBoardHasMeansOverTheLayersThatHaveAGateOrASelection) {
  const auto value = [](const v1::StepRecord& step, const std::string& name) {
    for (const auto& [key, number] : ScalarsOf(step)) {
      if (key == name) return number;
    }
    return -1.0;
  };
  EXPECT_EQ(value(Step(10), "gate/entropy_mean"), 1.5);
  v1::StepRecord step = StepOfTwoKindsOfLayers();
  EXPECT_EQ(value(step, "gate/entropy_mean"), 2);
  EXPECT_EQ(value(step, "gate/share_win"), 0.5);
  EXPECT_EQ(value(step, "selection/keys_mean"), 100);
  step.mutable_layers(1)->clear_gate();
  EXPECT_EQ(value(step, "gate/entropy_mean"), -1) << "absent";
}

TEST(AppendFile, CutsATornLineOffAndKeepsWholeOnes) {
  const TempDir dir;
  const std::string whole = "step,x\n1,a\n2,b\n3,c\n";
  const auto keep = [](std::string_view content) {
    return KeepLines(content, "step,x\n", 99, StepOfCsv);
  };
  for (size_t length = 7; length <= whole.size(); ++length) {
    std::ofstream(dir / "x.csv") << whole.substr(0, length);
    ASSERT_OK(
        (*AppendFile::Open(*Folder::Make(dir.path()), "x.csv", "step,x\n", keep))->Append("9,z\n"));
    const std::string kept = whole.substr(0, whole.rfind('\n', length - 1) + 1);
    EXPECT_EQ(*ReadWholeFile(dir / "x.csv"), kept + "9,z\n");
  }
}

TEST(AppendFile, AFileWithAnotherHeaderIsNotOurs) {
  EXPECT_EQ(KeepLines("step,y\n1,a\n", "step,x\n", 99, StepOfCsv), 0u);
  EXPECT_EQ(StepOfCsv("12,a"), 12);
  EXPECT_EQ(StepOfCsv("a,12"), -1);
  EXPECT_EQ(StepOfCsv("12"), -1);
  EXPECT_EQ(StepOfJson("{\"ts\":1,\"step\":7,\"msg\":\"x\"}"), 7);
  EXPECT_EQ(StepOfJson("{\"step\":7,"), -1);
}

TEST(RecordQueue, AStuckSinkNeverBlocksAndLossesAreCounted) {
  std::atomic<bool> stuck{true};
  std::atomic<int> seen{0};
  RecordQueue queue(4, [&](const v1::WorkerRecord&) {
    while (stuck) std::this_thread::yield();
    ++seen;
  });
  for (int i = 0; i < 100; ++i) queue.Push({});
  EXPECT_GE(queue.dropped(), 95);  // four wait, one may be with the sink
  EXPECT_LE(queue.dropped(), 96);
  EXPECT_FALSE(queue.Flush(absl::Milliseconds(10)));
  stuck = false;
  EXPECT_TRUE(queue.Flush(absl::Seconds(10)));
  EXPECT_EQ(seen + queue.dropped(), 100);
}

}  // namespace
}  // namespace nsa::train
