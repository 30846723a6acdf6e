// How traces reach those who ask for them.
#include "server/act/profile/profile_broker.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two ranks of the job "j", on the nodes "a" and "b".
class ProfileBrokerTest : public ::testing::Test {
 protected:
  ProfileBrokerTest() : ranks_(2) {
    job_.set_id("j");
    job_.set_generation(4);
    ranks_[0].set_node("a");
    ranks_[1].set_node("b");
    ranks_[1].set_rank(1);
  }

  std::string Begin() {
    const auto id = broker_.Begin(job_, ranks_, 3);
    EXPECT_OK(id);
    return id.value_or("");
  }
  // Sends a part of the trace "0123456789"; returns where to go on.
  int64_t Send(const std::string& id, int32_t rank, int64_t offset, int64_t bytes) {
    v1::ReportProfileRequest report;
    report.set_profile_id(id);
    report.set_rank(rank);
    report.set_size(10);
    report.set_offset(offset);
    report.set_data(
        std::string("0123456789").substr(static_cast<size_t>(offset), static_cast<size_t>(bytes)));
    return broker_.Report(report).next_offset();
  }
  void Fail(const std::string& id, int32_t rank, const std::string& why) {
    v1::ReportProfileRequest report;
    report.set_profile_id(id);
    report.set_rank(rank);
    report.set_error(why);
    broker_.Report(report);
  }
  v1::ProfileJobResponse Take(const std::string& id) {
    const auto next = broker_.Next(id);
    EXPECT_OK(next);
    EXPECT_TRUE(next.ok() && next->has_value()) << "nothing to take";
    return next.ok() ? next->value_or(v1::ProfileJobResponse()) : v1::ProfileJobResponse();
  }

  FakeClock clock_;
  std::vector<std::string> changed_;
  ProfileBroker broker_{clock_, [this](const std::string& job) { changed_.push_back(job); }};
  v1::Job job_;
  std::vector<v1::RankPlacement> ranks_;
};

TEST_F(ProfileBrokerTest, OrdersATraceOfEveryRankUntilItHasArrived) {
  const std::string id = Begin();
  ASSERT_THAT(broker_.Wanted("a"), SizeIs(1));
  const v1::ProfileOrder order = broker_.Wanted("b").at(0);
  EXPECT_EQ(order.profile_id(), id);
  EXPECT_EQ(order.job_id(), "j");
  EXPECT_EQ(order.generation(), 4);
  EXPECT_EQ(order.rank(), 1);
  EXPECT_EQ(order.steps(), 3);
  EXPECT_EQ(broker_.NodeOf(id, 1), "b");
  EXPECT_EQ(broker_.NodeOf(id, 2), "");
  EXPECT_EQ(broker_.NodeOf("x", 0), "");
  EXPECT_EQ(Send(id, 0, 0, 10), 10);
  EXPECT_THAT(broker_.Wanted("a"), IsEmpty());
  EXPECT_THAT(broker_.Wanted("b"), SizeIs(1));
  EXPECT_THAT(changed_, ElementsAre("j"));
}

TEST_F(ProfileBrokerTest, KeepsOnePartInMemoryUntilTheReaderTakesIt) {
  const std::string id = Begin();
  EXPECT_EQ(Send(id, 0, 0, 4), 4);
  EXPECT_EQ(Send(id, 0, 4, 4), 4) << "wait: the part before it is still here";
  EXPECT_EQ(Send(id, 0, 0, 4), 4) << "delivered before";
  const v1::ProfileJobResponse first = Take(id);
  EXPECT_EQ(first.data(), "0123");
  EXPECT_EQ(first.node(), "a");
  EXPECT_EQ(first.size(), 10);
  EXPECT_FALSE((*broker_.Next(id)).has_value());
  EXPECT_EQ(Send(id, 0, 4, 6), 10);
  const v1::ProfileJobResponse second = Take(id);
  EXPECT_EQ(second.offset(), 4);
  EXPECT_EQ(second.data(), "456789");
  Fail(id, 1, "rank 1: no such worker runs");
  EXPECT_EQ(Take(id).error(), "rank 1: no such worker runs");
  EXPECT_THAT(broker_.Next(id), StatusIs(absl::StatusCode::kOutOfRange));
  const ProfileBroker::Summary summary = broker_.SummaryOf(id);
  EXPECT_EQ(summary.traces, 1);
  EXPECT_EQ(summary.bytes, 10);
  EXPECT_EQ(summary.steps, 3);
  EXPECT_THAT(summary.errors, ElementsAre("rank 1: no such worker runs"));
}

TEST_F(ProfileBrokerTest, ProfilesAJobForOneCallerAtATimeAndAFewJobsTogether) {
  const std::string id = Begin();
  EXPECT_THAT(broker_.Begin(job_, ranks_, 3),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("one at a time")));
  for (size_t i = 1; i < ProfileBroker::kMostProfiles; ++i) {
    v1::Job other;
    other.set_id(absl::StrCat("other-", i));
    EXPECT_OK(broker_.Begin(other, ranks_, 3));
  }
  v1::Job last;
  last.set_id("last");
  EXPECT_THAT(broker_.Begin(last, ranks_, 3), StatusIs(absl::StatusCode::kResourceExhausted));
  broker_.End(id);
  EXPECT_OK(broker_.Begin(last, ranks_, 3));
  EXPECT_EQ(Send(id, 0, 0, 4), 10) << "nobody waits for it: the agent shall stop";
  EXPECT_THAT(broker_.Next(id), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(ProfileBrokerTest, RefusesANumberOfStepsOutOfRange) {
  for (const int32_t steps : {-1, 0, 101}) {
    EXPECT_THAT(broker_.Begin(job_, ranks_, steps),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("(from 1 to 100)")));
  }
}

TEST_F(ProfileBrokerTest, ARankOfWhichNothingIsHeardHasNotAnswered) {
  const std::string id = Begin();
  v1::ReportProfileRequest alive;
  alive.set_profile_id(id);
  for (int i = 0; i < 7; ++i) {
    clock_.Advance(ProfileBroker::kSilence / 4);
    broker_.Report(alive);
    broker_.Expire();
  }
  changed_.clear();
  EXPECT_THAT(Take(id).error(), HasSubstr("rank 1: agent b did not answer for 30 s"));
  EXPECT_FALSE((*broker_.Next(id)).has_value()) << "rank 0 records";
  clock_.Advance(ProfileBroker::kSilence);
  broker_.Expire();
  EXPECT_THAT(changed_, ElementsAre("j"));
  EXPECT_THAT(Take(id).error(), HasSubstr("rank 0"));
  EXPECT_THAT(broker_.Next(id), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(broker_.SummaryOf(id).traces, 0);
}

TEST_F(ProfileBrokerTest, ARankThatMayNeverBeginIsNotAwaitedForEver) {
  for (const bool sends : {false, true}) {
    const std::string id = Begin();
    v1::ReportProfileRequest failed;
    failed.set_profile_id(id);
    failed.set_rank(1);
    failed.set_error("rank 1: no");
    broker_.Report(failed);
    EXPECT_EQ(Take(id).error(), "rank 1: no");
    v1::ReportProfileRequest alive;
    alive.set_profile_id(id);
    if (sends) {
      alive.set_size(10);
      alive.set_data("begin");
    }
    broker_.Report(alive);
    for (int i = 0; i < 3; ++i) {
      clock_.Advance(ProfileBroker::kSilence / 4);
      broker_.Report(alive);
      broker_.Expire();
    }
    if (sends) {
      EXPECT_EQ(Take(id).data(), "begin");
    }
    EXPECT_FALSE((*broker_.Next(id)).has_value()) << "it may record";
    clock_.Advance(ProfileBroker::kSilence / 4);
    broker_.Report(alive);
    broker_.Expire();
    if (sends) {
      EXPECT_FALSE((*broker_.Next(id)).has_value()) << "its trace is under way";
    } else {
      EXPECT_THAT(Take(id).error(), HasSubstr("rank 0: no trace 30 s after"));
    }
    broker_.End(id);
  }
}

TEST_F(ProfileBrokerTest, WhatBreaksTheRulesIsAnErrorOfThatRank) {
  const auto send = [&](int64_t size, int64_t offset, size_t bytes) {
    const std::string id = Begin();
    v1::ReportProfileRequest report;
    report.set_profile_id(id);
    report.set_size(size);
    report.set_offset(offset);
    report.set_data(std::string(bytes, 'x'));
    EXPECT_EQ(broker_.Report(report).next_offset(), size) << "the agent shall not go on";
    const std::string error = Take(id).error();
    broker_.End(id);
    return error;
  };
  EXPECT_THAT(send(ProfileBroker::kMostBytes + 1, 0, 1), HasSubstr("ask for fewer steps"));
  EXPECT_THAT(send(ProfileBroker::kMostBytes, 0, ProfileBroker::kMostPartBytes + 1),
              HasSubstr("a part of 1048577 bytes"));
  EXPECT_THAT(send(10, 8, 3), HasSubstr("at 8 of a trace of 10"));
  EXPECT_THAT(send(10, -1, 3), HasSubstr("at -1"));
  EXPECT_THAT(send(10, 0, 0), HasSubstr("a part of 0 bytes"));
  const std::string id = Begin();
  EXPECT_EQ(Send(id, 0, 0, 4), 4);
  v1::ReportProfileRequest larger;
  larger.set_profile_id(id);
  larger.set_size(11);
  larger.set_offset(4);
  larger.set_data("x");
  broker_.Report(larger);
  EXPECT_THAT(Take(id).error(), HasSubstr("of a trace of 11"));
}

}  // namespace
}  // namespace nsa::server
