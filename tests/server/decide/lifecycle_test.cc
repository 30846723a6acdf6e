#include "server/decide/lifecycle.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/decide/transition.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using v1::Job;
using enum Trigger;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::vector<State> kStates = {
    Job::STATE_QUEUED,    Job::STATE_PREFLIGHT,  Job::STATE_STARTING,
    Job::STATE_RUNNING,   Job::STATE_RESTARTING, Job::STATE_STOPPING,
    Job::STATE_SUCCEEDED, Job::STATE_FAILED,     Job::STATE_STOPPED};

// The whole table once more. One row per state, one column per trigger. A cell holds the first
// letters of the state that follows, or "." if there is no transition.
TEST(Lifecycle, EveryPairOfStateAndTriggerLeadsWhereTheDesignSays) {
  //   PLA PAS REF LATER GONE RUN LOST DUE GAVE FIN AT GRA NOW TIME MOV MNOW MOVED STO COM RES ALLOC
  const std::map<State, std::string_view> picture = {
      {Job::STATE_QUEUED, "P . . . . . . . . . Q X X . . . . . . . F"},
      {Job::STATE_PREFLIGHT, ". S F Q Q . . . . . P X X . . . Q . . . ."},
      {Job::STATE_STARTING, ". . . . . R RE . . . S ST ST ST RE RE . X OK . ."},
      {Job::STATE_RUNNING, ". . . . . . RE . . . R ST ST ST RE RE . X OK . ."},
      {Job::STATE_RESTARTING, ". . . . Q . RE S F F RE ST ST . . RE Q X OK . ."},
      {Job::STATE_STOPPING, ". . . . . . ST . . . . . ST . . . . X OK . ."},
      {Job::STATE_SUCCEEDED, ". . . . . . . . . . . . . . . . . . . Q ."},
      {Job::STATE_FAILED, ". . . . . . . . . . . . . . . . . . . Q ."},
      {Job::STATE_STOPPED, ". . . . . . . . . . . . . . . . . . . Q ."}};
  const std::map<std::string, State> letters = {
      {"Q", Job::STATE_QUEUED},     {"P", Job::STATE_PREFLIGHT},   {"S", Job::STATE_STARTING},
      {"R", Job::STATE_RUNNING},    {"RE", Job::STATE_RESTARTING}, {"ST", Job::STATE_STOPPING},
      {"OK", Job::STATE_SUCCEEDED}, {"F", Job::STATE_FAILED},      {"X", Job::STATE_STOPPED}};
  for (const State state : kStates) {
    const std::vector<std::string> row =
        absl::StrSplit(absl::string_view(picture.at(state).data(), picture.at(state).size()), ' ',
                       absl::SkipEmpty());
    ASSERT_THAT(row, SizeIs(kTriggers));
    for (int i = 0; i < kTriggers; ++i) {
      const auto trigger = static_cast<Trigger>(i);
      const std::string& wanted = row[static_cast<size_t>(i)];
      const auto got = FindTransition(state, trigger);
      const std::string where = absl::StrCat(StateName(state), " + ", TriggerName(trigger));
      if (wanted == ".") {
        EXPECT_THAT(got,
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(StateName(state))))
            << where;
      } else {
        ASSERT_OK(got) << where;
        EXPECT_EQ(got->to, letters.at(wanted)) << where << " leads to " << StateName(got->to);
      }
    }
  }
}

TEST(Lifecycle, HasNoPairTwice) {
  std::set<std::pair<int, Trigger>> pairs;
  for (const Transition& row : LifecycleTable()) {
    EXPECT_TRUE(pairs.insert({row.from, row.trigger}).second)
        << StateName(row.from) << " + " << TriggerName(row.trigger);
  }
}

TEST(Lifecycle, StopsOnlyEscalate) {
  const auto stop = [](v1::StopMode mode, int64_t at = 0) {
    v1::StopRequest request;
    request.set_mode(mode);
    request.set_at_step(at);
    return request;
  };
  const auto none = stop(v1::STOP_MODE_UNSPECIFIED);
  const auto at5 = stop(v1::STOP_MODE_AT_STEP, 5);
  const auto at9 = stop(v1::STOP_MODE_AT_STEP, 9);
  const auto graceful = stop(v1::STOP_MODE_GRACEFUL);
  const auto now = stop(v1::STOP_MODE_NOW);
  EXPECT_TRUE(*Escalates(none, at5));
  EXPECT_TRUE(*Escalates(at5, at9)) << "a later at-step replaces an earlier one";
  EXPECT_TRUE(*Escalates(at9, graceful));
  EXPECT_TRUE(*Escalates(graceful, now));
  EXPECT_FALSE(*Escalates(at5, at5)) << "the same again changes nothing";
  EXPECT_FALSE(*Escalates(now, now));
  for (const auto& [strong, weak] : {std::pair(graceful, at5), {now, at5}, {now, graceful}}) {
    EXPECT_THAT(Escalates(strong, weak), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
}

TEST(Transition, WritesStateReasonTimesAndOneEvent) {
  v1::StoredJob job;
  job.mutable_job()->set_state(Job::STATE_PREFLIGHT);
  job.mutable_job()->mutable_progress()->set_checkpoint_step(40);
  job.mutable_job()->mutable_spec()->mutable_train()->set_save_every(10);
  std::vector<v1::JobEvent> events;
  ASSERT_OK(Apply(kPreflightPassed, {.text = "on a"}, absl::FromUnixSeconds(7), &job, &events));
  EXPECT_EQ(job.job().state(), Job::STATE_STARTING);
  EXPECT_EQ(job.job().generation(), 1);
  EXPECT_EQ(job.job().start_unix_nanos(), 7'000'000'000);
  EXPECT_EQ(job.progress_mark(), 40);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].reason(), "LAUNCHED");
  EXPECT_EQ(events[0].text(), "on a");
}

TEST(Transition, AnEndFreesTheSlots) {
  v1::StoredJob job;
  job.mutable_job()->set_state(Job::STATE_RUNNING);
  job.add_placements()->set_node("a");
  std::vector<v1::JobEvent> events;
  ASSERT_OK(Apply(kGangCompleted, {}, absl::FromUnixSeconds(9), &job, &events));
  EXPECT_EQ(job.placements_size(), 0);
  EXPECT_EQ(job.job().end_unix_nanos(), 9'000'000'000);
  EXPECT_EQ(job.job().progress().eta_seconds(), 0);
}

TEST(Transition, ARefusedOneChangesNothing) {
  v1::StoredJob job;
  job.mutable_job()->set_state(Job::STATE_SUCCEEDED);
  const std::string before = job.SerializeAsString();
  std::vector<v1::JobEvent> events;
  EXPECT_THAT(Apply(kStopNowAsked, {}, absl::Now(), &job, &events),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(job.SerializeAsString(), before);
  EXPECT_TRUE(events.empty());
}

}  // namespace
}  // namespace nsa::server
