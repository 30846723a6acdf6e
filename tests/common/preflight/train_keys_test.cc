// The keys of train that belong to one optimizer or one schedule, and the limits of newer numbers.
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// "RULE: field: problem" of what is refused in the good job after `change`.
std::vector<std::string> RefusedJob(const std::function<void(v1::JobSpec*)>& change) {
  GoodJob job;
  change(&job.spec);
  const v1::PreflightReport report = job.Check();
  std::vector<std::string> refused;
  for (const v1::Finding& finding : report.findings()) {
    if (finding.severity() != v1::SEVERITY_ERROR) continue;
    refused.push_back(finding.rule() + ": " + finding.field() + ": " + finding.problem());
  }
  return refused;
}

std::vector<std::string> Refused(const std::function<void(v1::TrainSpec*)>& change) {
  return RefusedJob([&](v1::JobSpec* spec) { change(spec->mutable_train()); });
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
  EXPECT_THAT(Refused([](v1::TrainSpec* train) {
                train->set_optimizer(v1::OPTIMIZER_MUON);
                train->set_muon_lr(0);
                train->add_muon_betas(0.9);
              }),
              ElementsAre(StartsWith("TRAIN_RANGE: train.muon_betas: 1"),
                          StartsWith("TRAIN_RANGE: train.muon_lr: 0")));
}

// 1e-46 is 0 in a float.
TEST(TrainKeys, LearningRatesHaveLimits) {
  for (const double rate : {1e-46, 9e-11, 1.1, 10.0}) {
    EXPECT_THAT(Refused([&](v1::TrainSpec* train) {
                  train->set_optimizer(v1::OPTIMIZER_MUON);
                  train->set_lr(rate);
                  train->set_muon_lr(rate);
                }),
                ElementsAre(StartsWith("TRAIN_RANGE: train.lr: "),
                            StartsWith("TRAIN_RANGE: train.muon_lr: ")))
        << rate;
  }
  for (const double rate : {1e-10, 1.0}) {
    EXPECT_THAT(Refused([&](v1::TrainSpec* train) { train->set_lr(rate); }), IsEmpty()) << rate;
  }
}

TEST(TrainKeys, MuonsKeysAreRefusedWithAdamW) {
  EXPECT_THAT(Refused([](v1::TrainSpec* train) {
                train->set_muon_lr(0.003);
                train->add_muon_betas(0.9);
                train->add_muon_betas(0.9);
              }),
              ElementsAre(StartsWith("TRAIN_UNUSED: train.muon_lr: set"),
                          StartsWith("TRAIN_UNUSED: train.muon_betas: set")));
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
  EXPECT_THAT(Refused([](v1::TrainSpec* train) { train->set_decay_steps(1); }),
              ElementsAre(StartsWith("TRAIN_UNUSED: train.decay_steps: set")));
}

TEST(JobKeys, HashesAreEverySoManyStepsOrOnlyAtTheEnd) {
  const auto refused = [](int64_t every) {
    return RefusedJob([every](v1::JobSpec* spec) { spec->mutable_guard()->set_hash_every(every); });
  };
  EXPECT_THAT(refused(0), IsEmpty());
  EXPECT_THAT(refused(1), IsEmpty());
  EXPECT_THAT(refused(-1), ElementsAre(StartsWith("GUARD_RANGE: guard.hash_every: -1")));
}

}  // namespace
}  // namespace nsa
