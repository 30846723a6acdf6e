// The rules about what a job waits for, and about its alerts.
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "common/job/load.h"
#include "common/preflight/fork.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "RULE field" of the findings that refuse, after `change` of the good job.
std::vector<std::string> RefusedBy(const std::function<void(GoodJob*)>& change,
                                   const PreflightContext& context = {}) {
  GoodJob job;
  change(&job);
  std::vector<std::string> refused;
  const v1::PreflightReport report = Preflight(job.spec, context);
  for (const v1::Finding& finding : report.findings()) {
    const std::string& rule = finding.rule();
    if (rule != "AFTER_INVALID" && rule != "NOT_BEFORE_INVALID" && rule != "ALERTS_INVALID") {
      continue;
    }
    EXPECT_EQ(finding.severity(), v1::SEVERITY_ERROR) << finding.DebugString();
    EXPECT_FALSE(finding.problem().empty() || finding.fix().empty()) << finding.DebugString();
    refused.push_back(rule + " " + finding.field());
  }
  return refused;
}

v1::AlertSpec* AddAlert(GoodJob* job, const std::string& when) {
  v1::AlertSpec* const alert = job->spec.add_alerts();
  alert->set_when(when);
  return alert;
}

TEST(QueueRules, AJobWaitsForAFewOthersEachOnce) {
  const auto after = [](const std::vector<std::string>& names) {
    return RefusedBy(
        [&](GoodJob* job) { job->spec.mutable_after()->Assign(names.begin(), names.end()); });
  };
  EXPECT_THAT(after({"prep", "jabcdefghijkl"}), IsEmpty());
  EXPECT_THAT(after({"prep", "prep"}), ElementsAre("AFTER_INVALID after[1]"));
  EXPECT_THAT(after({"", std::string(64, 'a')}),
              ElementsAre("AFTER_INVALID after[0]", "AFTER_INVALID after[1]"));
  std::vector<std::string> many;
  for (int i = 0; i < 17; ++i) many.push_back("job-" + std::to_string(i));
  EXPECT_THAT(after(many), ElementsAre("AFTER_INVALID after"));
  many.pop_back();
  EXPECT_THAT(after(many), IsEmpty());
}

TEST(QueueRules, WhomAJobMayWaitForIsTheCoordinatorsToSay) {
  PreflightContext context;
  context.awaited = [](const std::string& name) {
    return name == "prep" ? absl::OkStatus()
                          : absl::InvalidArgumentError("'lost' (a job); name one");
  };
  const auto wait = [](GoodJob* job) {
    job->spec.add_after("prep");
    job->spec.add_after("lost");
  };
  EXPECT_THAT(RefusedBy(wait, context), ElementsAre("AFTER_INVALID after[1]"));
  EXPECT_THAT(RefusedBy(wait), IsEmpty()) << "nsactl validate --offline";
}

TEST(QueueRules, NotBeforeIsATimeOrADuration) {
  const auto at = [](const std::string& time) {
    return RefusedBy([&](GoodJob* job) { job->spec.set_not_before(time); });
  };
  EXPECT_THAT(at("2027-01-15T09:00:00Z"), IsEmpty());
  EXPECT_THAT(at("+2h"), IsEmpty());
  EXPECT_THAT(at("tomorrow"), ElementsAre("NOT_BEFORE_INVALID not_before"));
}

TEST(QueueRules, AnAlertHasAConditionAndKnownNotices) {
  const std::vector<std::string> notices = {"slack", "mail"};
  PreflightContext context;
  context.notices = &notices;
  EXPECT_THAT(RefusedBy(
                  [](GoodJob* job) {
                    AddAlert(job, "val_loss > 3 for 10m")->add_notify("slack");
                    AddAlert(job, "loss > 3");
                  },
                  context),
              IsEmpty());
  EXPECT_THAT(RefusedBy([](GoodJob* job) { AddAlert(job, "loss >> 3"); }),
              ElementsAre("ALERTS_INVALID alerts[0].when"));
  EXPECT_THAT(RefusedBy([](GoodJob* job) {
                AddAlert(job, "loss > 3");
                AddAlert(job, "loss > 3");
              }),
              ElementsAre("ALERTS_INVALID alerts[1].when"));
  const auto to_slak = [](GoodJob* job) { AddAlert(job, "loss > 3")->add_notify("slak"); };
  EXPECT_THAT(RefusedBy(to_slak, context), ElementsAre("ALERTS_INVALID alerts[0].notify"));
  EXPECT_THAT(RefusedBy(to_slak), IsEmpty()) << "no coordinator is known";
  EXPECT_THAT(RefusedBy([](GoodJob* job) {
                v1::AlertSpec* const alert = AddAlert(job, "loss > 3");
                for (int i = 0; i < 9; ++i) alert->add_notify("slack");
              }),
              ElementsAre("ALERTS_INVALID alerts[0].notify"));
  EXPECT_THAT(RefusedBy([](GoodJob* job) {
                for (int i = 0; i < 9; ++i) AddAlert(job, "loss > " + std::to_string(i));
              }),
              ElementsAre("ALERTS_INVALID alerts"));
}

TEST(QueueRules, WhatAJobWaitsForIsNoPartOfItsRun) {
  GoodJob job;
  v1::JobSpec other = job.spec;
  other.add_after("prep");
  other.set_not_before("+2h");
  other.add_alerts()->set_when("loss > 3");
  EXPECT_EQ(JobHash(job.spec), JobHash(other)) << "its checkpoints stay its own";
  EXPECT_EQ(FixedDifferences(job.spec, other), "") << "a resume may change it";
  EXPECT_EQ(ForkDifferences(job.spec, other), "");
}

TEST(QueueRules, AJobFileMayWriteOneJobWithoutAList) {
  v1::JobSpec spec;
  ASSERT_TRUE(LoadYamlText("after: prep\nnot_before: 2027-01-15T09:00:00Z\nalerts:\n"
                           "  - {when: \"val_loss > 3 for 10m\", notify: slack}\n",
                           "job.yaml", &spec)
                  .ok());
  EXPECT_THAT(spec.after(), ElementsAre("prep"));
  EXPECT_EQ(spec.not_before(), "2027-01-15T09:00:00Z");
  EXPECT_THAT(spec.alerts(0).notify(), ElementsAre("slack"));
}

}  // namespace
}  // namespace nsa
