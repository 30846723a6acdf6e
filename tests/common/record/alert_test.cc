// Conditions of alerts: how they are written, and what a record has of their quantity.
#include "common/record/alert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"

namespace nsa::record {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ParseAlert, ReadsQuantityOperatorNumberAndHowLong) {
  const auto alert = ParseAlert("val_loss > 3 for 10m");
  ASSERT_OK(alert.status());
  EXPECT_STREQ(alert->quantity->name, "val_loss");
  EXPECT_EQ(alert->limit, 3);
  EXPECT_EQ(alert->for_seconds, 600);
  EXPECT_EQ(alert->for_steps, 0);
  EXPECT_EQ(ParseAlert("grad_norm >= 1e2 for 100 steps")->for_steps, 100);
  EXPECT_EQ(ParseAlert("loss < -0.5 for 1 step")->for_steps, 1);
  EXPECT_EQ(ParseAlert("  tokens_per_second <=  1000 ")->for_seconds, 0);
  EXPECT_EQ(ParseAlert("gate_entropy < 0.5 for 7d")->for_seconds, 168 * 3600);
}

TEST(ParseAlert, TakesEveryQuantityThatIsANumberAndThePageNamesIt) {
  std::ifstream in(SourceDir() + "/docs/job_file.md");
  std::stringstream page;
  page << in.rdbuf();
  for (const Quantity& quantity : kQuantities) {
    const auto alert = ParseAlert(absl::StrCat(quantity.name, " > 1"));
    const bool number = quantity.word == nullptr;
    ASSERT_EQ(alert.ok(), number) << quantity.name;
    if (!number) continue;
    EXPECT_EQ(alert->quantity, &quantity) << quantity.name;
    EXPECT_THAT(page.str(), HasSubstr(absl::StrCat("`", quantity.name, "`")));
  }
}

TEST(ParseAlert, RefusesWithTheValueAndWhatToDo) {
  const std::string long_text(kLongestAlert + 1, 'x');
  for (const auto& [when, named] : std::initializer_list<std::pair<std::string, std::string>>{
           {"", "''"},
           {"loss", "'loss'"},
           {"loss >", "'loss >'"},
           {"loss>3", "'loss>3'"},
           {"lost > 3", "'lost'"},
           {"data_source == 1", "'data_source'"},
           {"loss => 3", "'=>'"},
           {"loss > three", "'three'"},
           {"loss > nan", "'nan'"},
           {"loss > inf", "'inf'"},
           {"loss > 3 for", "'loss > 3 for'"},
           {"loss > 3 over 5m", "'over'"},
           {"loss > 3 for 5", "'5'"},
           {"loss > 3 for 0s", "'0s'"},
           {"loss > 3 for -5m", "'-5m'"},
           {"loss > 3 for 169h", "'169h'"},
           {"loss > 3 for 0 steps", "'0'"},
           {"loss > 3 for 1.5 steps", "'1.5'"},
           {"loss > 3 for 1000000001 steps", "'1000000001'"},
           {"loss > 3 for 5 epochs", "'loss > 3 for 5 epochs'"},
           {"loss > 3\n", "'loss > 3"},
           {"loss\t> 3", "'loss"},
           {"loss > 3\u00a0", "'loss > 3"},
           {"loss > 3 for 5m and more", "'loss > 3 for 5m and more'"},
           {long_text, "201 bytes"}}) {
    const absl::Status status = ParseAlert(when).status();
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << when;
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_THAT(std::string(status.message()), HasSubstr("; ")) << "what to do";
  }
}

TEST(AlertRule, NanIsGreaterThanEveryNumber) {
  const auto holds = [](const char* compares, double value) {
    return ParseAlert(absl::StrCat("loss ", compares, " 3"))->Holds(value);
  };
  const struct {
    const char* compares;
    bool below, at, above, nan;
  } cases[] = {{">", false, false, true, true},   {">=", false, true, true, true},
               {"<", true, false, false, false},  {"<=", true, true, false, false},
               {"==", false, true, false, false}, {"!=", true, false, true, true}};
  for (const auto& one : cases) {
    EXPECT_EQ(holds(one.compares, 2.5), one.below) << one.compares;
    EXPECT_EQ(holds(one.compares, 3), one.at) << one.compares;
    EXPECT_EQ(holds(one.compares, 3.5), one.above) << one.compares;
    EXPECT_EQ(holds(one.compares, kInfinity), one.above) << one.compares;
    EXPECT_EQ(holds(one.compares, -kInfinity), one.below) << one.compares;
    EXPECT_EQ(holds(one.compares, kNan), one.nan) << one.compares;
  }
}

Value MeasuredIn(const char* name, const v1::WorkerRecord& record,
                 const std::vector<v1::GpuInfo>& gpus = {}) {
  return Measured(*ParseAlert(absl::StrCat(name, " > 0"))->quantity, record, gpus);
}

TEST(Measured, IsOfTheRecordThatHasIt) {
  v1::WorkerRecord step;
  step.mutable_step()->set_loss(2.5);
  EXPECT_EQ(MeasuredIn("loss", step), 2.5);
  EXPECT_EQ(MeasuredIn("val_loss", step), std::nullopt);
  v1::WorkerRecord eval;
  eval.mutable_eval()->set_loss(3.5);
  EXPECT_EQ(MeasuredIn("val_loss", eval), 3.5);
  EXPECT_EQ(MeasuredIn("loss", eval), std::nullopt);
  EXPECT_EQ(MeasuredIn("loss", v1::WorkerRecord()), std::nullopt);
}

TEST(Measured, SeveralLayersAndGpusCountAsOne) {
  v1::WorkerRecord record;
  for (const double entropy : {0.2, 0.6}) {
    v1::GateStats& gate = *record.mutable_step()->add_layers()->mutable_gate();
    gate.set_entropy_mean(entropy);
    gate.set_entropy_min(entropy / 2);
  }
  record.mutable_step()->add_layers();  // one without a gate
  EXPECT_DOUBLE_EQ(*MeasuredIn("gate_entropy", record), 0.4) << "their mean";
  EXPECT_DOUBLE_EQ(*MeasuredIn("gate_entropy_min", record), 0.1) << "the least";
  EXPECT_EQ(MeasuredIn("mass_kept", record), std::nullopt) << "no audit in this step";
  v1::GpuInfo hot;
  hot.set_temperature_celsius(80);
  EXPECT_EQ(MeasuredIn("celsius", record, {hot, v1::GpuInfo()}), 80);
  EXPECT_EQ(MeasuredIn("celsius", record), std::nullopt);
}

}  // namespace
}  // namespace nsa::record
