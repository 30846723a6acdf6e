// nsactl bisect: the first step in which two runs part, and the command against a fake coordinator.
#include <cmath>
#include <functional>

#include "client/commands/view/step_log.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::WatchRecordsResponse Step(int64_t step, double loss = 2.5) {
  v1::WatchRecordsResponse record;
  v1::StepRecord& values = *record.mutable_record()->mutable_step();
  values.set_step(step);
  values.set_tokens(64);
  values.set_learning_rate(3e-4);
  values.set_loss(loss);
  values.set_grad_norm(0.5);
  values.set_parameters_hash(7);
  return record;
}

// A run of ten steps; `change` is applied to each.
StepLog Log(const std::function<void(v1::StepRecord*)>& change = nullptr) {
  StepLog log;
  for (int64_t step = 1; step <= 10; ++step) {
    v1::WatchRecordsResponse record = Step(step);
    if (change) change(record.mutable_record()->mutable_step());
    log.Add(record);
  }
  return log;
}

TEST(FindStepParting, OfEqualRunsFindsNothing) {
  const StepParting parting = FindStepParting(Log(), Log());
  EXPECT_EQ(parting.step, 0);
  EXPECT_EQ(parting.equal_to, 10);
  EXPECT_EQ(parting.compared, 10);
}

TEST(FindStepParting, FindsTheLastBitOfEveryValue) {
  struct Case {
    const char* value;
    std::function<void(v1::StepRecord*)> change;
    const char* meaning;
  };
  const Case cases[] = {
      {"tokens", [](v1::StepRecord* step) { step->set_tokens(65); }, "batches"},
      {"learning_rate",
       [](v1::StepRecord* step) { step->set_learning_rate(std::nextafter(3e-4, 1)); }, "schedules"},
      {"loss", [](v1::StepRecord* step) { step->set_loss(std::nextafter(2.5, 3)); },
       "the parameters after step 6 or the batch of step 7 differ"},
      {"grad_norm", [](v1::StepRecord* step) { step->set_grad_norm(std::nextafter(0.5, 1)); },
       "forward of step 7 was equal, its backward differs"},
      {"parameters_hash", [](v1::StepRecord* step) { step->set_parameters_hash(8); },
       "loss and gradient norm of step 7 were equal, the parameters after it differ"}};
  for (const Case& one : cases) {
    const StepLog changed = Log([&](v1::StepRecord* step) {
      if (step->step() >= 7) one.change(step);
    });
    const StepParting parting = FindStepParting(Log(), changed);
    EXPECT_EQ(parting.step, 7);
    EXPECT_EQ(parting.equal_to, 6);
    EXPECT_EQ(parting.value, one.value);
    EXPECT_NE(parting.a_text, parting.b_text);
    EXPECT_EQ(parting.a == parting.b, parting.value == "parameters_hash");
    EXPECT_THAT(parting.meaning, HasSubstr(one.meaning));
  }
}

TEST(FindStepParting, CountsHashesThatBothRunsHave) {
  const StepLog few = Log([](v1::StepRecord* step) {
    if (step->step() % 4 != 0) step->clear_parameters_hash();
  });
  EXPECT_EQ(FindStepParting(Log(), few).hashes, 2);
  EXPECT_EQ(FindStepParting(Log(), few).step, 0) << "a hash that only one run has is no difference";
}

TEST(FindStepParting, ComparesWhatBothRunsHave) {
  StepLog late;
  for (int64_t step = 6; step <= 20; ++step) late.Add(Step(step));
  const StepParting parting = FindStepParting(Log(), late);
  EXPECT_EQ(parting.compared, 5);
  EXPECT_EQ(parting.equal_to, 10);
  EXPECT_EQ(FindStepParting(Log(), StepLog()).compared, 0);
}

TEST(StepLog, OfARunThatWentBackHasTheStepsThatCount) {
  StepLog log;
  for (int64_t step = 1; step <= 5; ++step) log.Add(Step(step, 9));
  for (int64_t step = 3; step <= 4; ++step) log.Add(Step(step, 2.5));
  ASSERT_EQ(log.steps().size(), 4u) << "step 5 was not done again";
  EXPECT_EQ(log.steps().at(2).loss(), 9);
  EXPECT_EQ(log.steps().at(4).loss(), 2.5);
}

class BisectTest : public CommandsTest {};

TEST_F(BisectTest, SaysThatEqualRunsAreEqual) {
  for (int step = 1; step <= 5; ++step) AddStep(step);
  const Ran ran = Run({"bisect", "demo", "old"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.out,
            "steps: 5 steps compared, up to 5: learning rate, loss and gradient norm have the "
            "same bits\n"
            "checkpoints: none of a step that both runs have\n");
}

TEST_F(BisectTest, SaysInHowManyStepsAllParametersWereCompared) {
  for (int step = 1; step <= 5; ++step) AddStep(step).set_parameters_hash(step);
  EXPECT_THAT(Run({"bisect", "demo", "old"}).out, HasSubstr("steps: 5 steps compared, up to 5"));
}

TEST_F(BisectTest, SaysWhatItCouldNotCompare) {
  v1::CheckpointInfo& checkpoint = state().checkpoints.emplace_back();
  checkpoint.set_step(40);
  checkpoint.set_path("/no/such/step-00000040");
  const Ran ran = Run({"bisect", "demo", "old"});
  EXPECT_EQ(ran.code, ExitCode::kPrecondition) << "nothing was compared";
  EXPECT_THAT(ran.out, HasSubstr("steps: the coordinator keeps none"));
  EXPECT_THAT(ran.out, HasSubstr("not compared: step-00000040: "));
  const auto document = nlohmann::json::parse(Run({"bisect", "demo", "old", "-o", "json"}).out);
  EXPECT_EQ(document["checkpoints"]["not_compared"].size(), 1u);
  EXPECT_EQ(document["steps"]["compared"], 0);
}

TEST_F(BisectTest, TakesTwoJobs) {
  EXPECT_THAT(Run({"bisect", "demo"}).err, StartsWith("nsactl: bisect: 1 job"));
  EXPECT_EQ(Run({"bisect", "demo", "no-such"}).code, ExitCode::kNotFound);
}

}  // namespace
}  // namespace nsa::client
