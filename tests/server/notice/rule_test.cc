// Which events and jobs a notice selects.
#include "server/notice/rule.h"

#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

v1::JobEvent Event(Reason reason, v1::Job::State state, v1::Severity severity = v1::SEVERITY_INFO) {
  v1::JobEvent event;
  event.set_reason(Word(reason));
  event.set_state(state);
  event.set_severity(severity);
  return event;
}

TEST(NoticeRule, TellsByDefaultHowAJobEndedAndEverythingGrave) {
  const NoticeRule rule = *MakeNoticeRule({});
  const v1::Job job;
  EXPECT_TRUE(Concerns(rule, Event(Reason::kCompleted, v1::Job::STATE_SUCCEEDED), job));
  EXPECT_TRUE(Concerns(rule, Event(Reason::kStoppedByUser, v1::Job::STATE_STOPPED), job));
  EXPECT_TRUE(Concerns(rule, Event(Reason::kPreflightRefused, v1::Job::STATE_FAILED), job));
  EXPECT_TRUE(Concerns(
      rule, Event(Reason::kGateCollapse, v1::Job::STATE_RUNNING, v1::SEVERITY_WARNING), job));
  EXPECT_TRUE(
      Concerns(rule, Event(Reason::kHang, v1::Job::STATE_RESTARTING, v1::SEVERITY_ERROR), job));
  EXPECT_FALSE(Concerns(rule, Event(Reason::kSubmitted, v1::Job::STATE_QUEUED), job));
  EXPECT_FALSE(Concerns(rule, Event(Reason::kAllRanksUp, v1::Job::STATE_RUNNING), job));
  EXPECT_FALSE(Concerns(rule, Event(Reason::kStoppedByUser, v1::Job::STATE_STOPPING), job))
      << "it has not stopped yet";
  EXPECT_FALSE(Concerns(rule, Event(Reason::kFallback, v1::Job::STATE_SUCCEEDED), job))
      << "what a worker reported late did not end the job";
}

TEST(NoticeRule, TellsTheReasonsThatItNamesAndNoOthers) {
  const NoticeRule rule = *MakeNoticeRule({"SUBMITTED", "HANG"});
  const v1::Job job;
  EXPECT_TRUE(Concerns(rule, Event(Reason::kSubmitted, v1::Job::STATE_QUEUED), job));
  EXPECT_FALSE(
      Concerns(rule, Event(Reason::kNodeLost, v1::Job::STATE_RESTARTING, v1::SEVERITY_ERROR), job));
}

TEST(NoticeRule, AStarTellsEverythingAlsoAReasonThatIsNotKnown) {
  const NoticeRule rule = *MakeNoticeRule({"*"});
  v1::JobEvent event = Event(Reason::kPlaced, v1::Job::STATE_PREFLIGHT);
  EXPECT_TRUE(Concerns(rule, event, {}));
  event.set_reason("OF_A_NEWER_WORKER");
  EXPECT_TRUE(Concerns(rule, event, {}));
}

NoticeRule Named(const std::string& name, const std::vector<std::string>& reasons = {}) {
  NoticeRule rule = *MakeNoticeRule(reasons);
  rule.name = name;
  return rule;
}

TEST(NoticeRule, AnAlertGoesToTheNoticesThatItNames) {
  v1::Job job;
  job.mutable_spec()->add_alerts()->set_when("loss > 3");
  job.mutable_spec()->add_alerts()->add_notify("slack");
  v1::JobEvent raised = Event(Reason::kAlertRaised, v1::Job::STATE_RUNNING, v1::SEVERITY_WARNING);
  v1::JobEvent cleared = Event(Reason::kAlertCleared, v1::Job::STATE_RUNNING);
  for (v1::JobEvent* event : {&raised, &cleared}) {
    event->set_problem("ALERT_1");
    EXPECT_TRUE(Concerns(Named("mail"), *event, job)) << "where warnings go";
    EXPECT_TRUE(Concerns(Named("mail", {event->reason()}), *event, job));
    EXPECT_FALSE(Concerns(Named("mail", {"COMPLETED"}), *event, job));
    event->set_problem("ALERT_2");
    EXPECT_FALSE(Concerns(Named("mail"), *event, job));
    EXPECT_FALSE(Concerns(Named("mail", {event->reason()}), *event, job));
    EXPECT_TRUE(Concerns(Named("slack", {"COMPLETED"}), *event, job));
    EXPECT_TRUE(Concerns(Named("all", {"*"}), *event, job));
    NoticeRule elsewhere = Named("slack");
    elsewhere.labels["team"] = "vision";
    EXPECT_FALSE(Concerns(elsewhere, *event, job)) << "the notice is not for this job";
  }
  job.add_mutes()->set_problem("ALERT_2");
  EXPECT_FALSE(Concerns(Named("slack"), raised, job));
  raised.set_problem("ALERT_1");
  EXPECT_TRUE(Concerns(Named("slack"), raised, job)) << "the other one is not muted";
}

TEST(NoticeRule, AMutedProblemIsToldToAStarOnlyAndTheEndOfTheJobToAll) {
  const NoticeRule rule = *MakeNoticeRule({});
  const NoticeRule named = *MakeNoticeRule({"DIVERGED"});
  const v1::JobEvent event = Event(Reason::kDiverged, v1::Job::STATE_RUNNING, v1::SEVERITY_WARNING);
  v1::Job job;
  EXPECT_TRUE(Concerns(rule, event, job));
  job.add_mutes()->set_problem("DIVERGED");
  EXPECT_FALSE(Concerns(rule, event, job));
  EXPECT_FALSE(Concerns(named, event, job));
  EXPECT_TRUE(Concerns(*MakeNoticeRule({"*"}), event, job));
  EXPECT_TRUE(
      Concerns(rule, Event(Reason::kGpuFault, v1::Job::STATE_RUNNING, v1::SEVERITY_WARNING), job));
  EXPECT_TRUE(
      Concerns(named, Event(Reason::kDiverged, v1::Job::STATE_FAILED, v1::SEVERITY_ERROR), job));
}

TEST(NoticeRule, TellsOnlyJobsThatHaveAllItsLabels) {
  NoticeRule rule = *MakeNoticeRule({});
  rule.labels = {{"team", "speech"}, {"tier", "prod"}};
  const v1::JobEvent event = Event(Reason::kCompleted, v1::Job::STATE_SUCCEEDED);
  v1::Job job;
  EXPECT_FALSE(Concerns(rule, event, job));
  (*job.mutable_spec()->mutable_labels())["team"] = "speech";
  EXPECT_FALSE(Concerns(rule, event, job));
  (*job.mutable_spec()->mutable_labels())["tier"] = "test";
  EXPECT_FALSE(Concerns(rule, event, job));
  (*job.mutable_spec()->mutable_labels())["tier"] = "prod";
  EXPECT_TRUE(Concerns(rule, event, job));
}

TEST(NoticeRule, AMisspeltReasonIsRefusedWithTheOneThatWasMeant) {
  EXPECT_THAT(MakeNoticeRule({"COMPLETED", "RANK_CRASHD"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("events: 'RANK_CRASHD'")));
  EXPECT_THAT(MakeNoticeRule({"\x1b[2J"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'\\x1b[2J'")));
  EXPECT_OK(MakeNoticeRule({"UNAVAILABLE"})) << "what a worker reports without a reason";
}

}  // namespace
}  // namespace nsa::server
