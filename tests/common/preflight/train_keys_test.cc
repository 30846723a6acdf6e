// The keys of train that belong to one optimizer or one schedule.
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "RULE: field: problem" of what is refused in the good job after `change`.
std::vector<std::string> Refused(const std::function<void(v1::TrainSpec*)>& change) {
  GoodJob job;
  change(job.spec.mutable_train());
  const v1::PreflightReport report = job.Check();
  std::vector<std::string> refused;
  for (const v1::Finding& finding : report.findings()) {
    if (finding.severity() != v1::SEVERITY_ERROR) continue;
    refused.push_back(finding.rule() + ": " + finding.field() + ": " + finding.problem());
  }
  return refused;
}

TEST(TrainKeys, MuonsKeysAreTakenWithMuon) {
  EXPECT_THAT(Refused([](v1::TrainSpec* train) {
                train->set_optimizer(v1::OPTIMIZER_MUON);
                train->set_muon_lr(0.003);
                train->add_muon_betas(0);
                train->add_muon_betas(0.99);
              }),
              IsEmpty());
}

TEST(TrainKeys, MuonsKeysHaveLimits) {
  EXPECT_THAT(
      Refused([](v1::TrainSpec* train) {
        train->set_optimizer(v1::OPTIMIZER_MUON);
        train->set_muon_lr(0);
        train->add_muon_betas(0.9);
      }),
      ElementsAre("TRAIN_RANGE: train.muon_betas: 1 values (two, each 0 or more and below 1)",
                  "TRAIN_RANGE: train.muon_lr: 0 (above 0, at most 10)"));
}

TEST(TrainKeys, MuonsKeysAreRefusedWithAdamW) {
  EXPECT_THAT(
      Refused([](v1::TrainSpec* train) {
        train->set_muon_lr(0.003);
        train->add_muon_betas(0.9);
        train->add_muon_betas(0.9);
      }),
      ElementsAre("TRAIN_UNUSED: train.muon_lr: set, but train.optimizer is adamw (muon)",
                  "TRAIN_UNUSED: train.muon_betas: set, but train.optimizer is adamw (muon)"));
}

TEST(TrainKeys, DecayStepsBelongToWsdAndAreAtMostAllSteps) {
  EXPECT_THAT(Refused([](v1::TrainSpec* train) {
                train->set_lr_schedule(v1::LR_SCHEDULE_WSD);
                train->set_decay_steps(train->steps());
              }),
              IsEmpty());
  for (const int64_t steps : {int64_t{0}, GoodJob().spec.train().steps() + 1}) {
    EXPECT_THAT(Refused([&](v1::TrainSpec* train) {
                  train->set_lr_schedule(v1::LR_SCHEDULE_WSD);
                  train->set_decay_steps(steps);
                }),
                ElementsAre(testing::StartsWith("TRAIN_RANGE: train.decay_steps")))
        << steps;
  }
  EXPECT_THAT(
      Refused([](v1::TrainSpec* train) { train->set_decay_steps(1); }),
      ElementsAre(
          "TRAIN_UNUSED: train.decay_steps: set, but train.lr_schedule has no such phase (wsd)"));
}

}  // namespace
}  // namespace nsa
