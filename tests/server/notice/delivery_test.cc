// One notice's events: in order, at least once, and what happens when the receiver fails.
#include "server/notice/delivery.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kPatience = absl::Seconds(20);

class DeliveryTest : public JobStoreFixture {
 protected:
  DeliveryTest() { notice_.rule = *MakeNoticeRule({"COMPLETED", "HANG"}); }
  ~DeliveryTest() override { Stop(); }

  void Happens(const std::string& job, const std::string& reason) {
    ASSERT_OK(store_
                  ->Update(job,
                           [&](v1::StoredJob*, std::vector<v1::JobEvent>* events) {
                             events->emplace_back().set_reason(reason);
                             return absl::OkStatus();
                           })
                  .status());
    bell_->Ring();
  }

  // `reset` waits for the thread; what it sent stays in sent_.
  void Start() {
    progress_ = *NoticeProgress::Open(folder_.path(), {notice_.name}, *store_->LastEvent(), clock_);
    bell_ = std::make_unique<NoticeBell>();
    NoticePauses pauses = pauses_;
    pauses.after = [this](int failures, double, const Outcome&) {
      const MutexLock lock(&mutex_);
      pauses_after_.push_back(failures);
      return absl::Milliseconds(1);
    };
    delivery_ = std::make_unique<Delivery>(
        notice_, Delivery::Parts{.store = *store_,
                                 .progress = *progress_,
                                 .bell = *bell_,
                                 .clock = clock_,
                                 .send = [this](std::span<const Telling> all) { return Send(all); },
                                 .most = most_,
                                 .told =
                                     [this](Told told, int events) {
                                       const MutexLock lock(&mutex_);
                                       told_[ToldWord(told)] += events;
                                     },
                                 .failed = [this] { ++failed_; },
                                 .pauses = pauses});
    thread_ = std::thread([this] { delivery_->Run(); });
  }
  void Stop() {
    if (bell_ != nullptr) bell_->Stop();
    if (thread_.joinable()) thread_.join();
    delivery_.reset();
    progress_.reset();
  }

  Outcome Send(std::span<const Telling> all) {
    const MutexLock lock(&mutex_);
    std::vector<std::string> message;
    for (const Telling& telling : all) {
      message.push_back(telling.job->job().name() + " " + telling.event.reason());
    }
    attempts_.push_back(message);
    Outcome outcome = answers_.empty() ? Outcome{} : answers_.front();
    if (answers_.size() > 1) answers_.erase(answers_.begin());
    if (outcome.kind == Outcome::kDelivered) {
      sent_.insert(sent_.end(), message.begin(), message.end());
    }
    return outcome;
  }
  std::vector<std::string> Sent() {
    const MutexLock lock(&mutex_);
    return sent_;
  }
  std::vector<std::vector<std::string>> Attempts() {
    const MutexLock lock(&mutex_);
    return attempts_;
  }
  int ToldOf(const std::string& word) {
    const MutexLock lock(&mutex_);
    return told_[word];
  }
  // The last one is given for ever.
  void Answer(std::vector<Outcome::Kind> kinds) {
    const MutexLock lock(&mutex_);
    answers_.clear();
    for (const Outcome::Kind kind : kinds) answers_.push_back({.kind = kind, .said = "HTTP"});
  }

  Notice notice_{.name = "ops", .place = "webhook https://x.example:443"};
  NoticePauses pauses_{.looks = absl::Milliseconds(1),
                       .gathers = absl::Milliseconds(1),
                       .refused = absl::Milliseconds(1),
                       .store = absl::Milliseconds(1)};
  size_t most_ = 1;
  std::unique_ptr<NoticeProgress> progress_;
  std::unique_ptr<NoticeBell> bell_;
  std::unique_ptr<Delivery> delivery_;
  std::thread thread_;
  std::atomic<int> failed_ = 0;
  Mutex mutex_;
  std::vector<std::vector<std::string>> attempts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> sent_ ABSL_GUARDED_BY(mutex_);
  std::vector<Outcome> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> pauses_after_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> told_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(DeliveryTest, TellsWhatConcernsItInOrderAndNothingOfThePast) {
  const std::string a = Insert("a");
  bell_ = std::make_unique<NoticeBell>();
  Happens(a, "COMPLETED");
  Start();
  const std::string b = Insert("b");
  Happens(b, "HANG");
  Happens(b, "PLACED");
  Happens(a, "COMPLETED");
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 2; }));
  EXPECT_THAT(Sent(), ElementsAre("b HANG", "a COMPLETED"));
  EXPECT_THAT(Attempts(), SizeIs(2)) << "one request for each event";
  ASSERT_TRUE(Within(kPatience, [&] { return delivery_->waiting_since() == 0; }));
  EXPECT_EQ(ToldOf("delivered"), 2);
}

TEST_F(DeliveryTest, WhatFailsIsTriedAgainBeforeTheNextEventAndThePausesGrow) {
  Start();
  Answer({Outcome::kAgain, Outcome::kAgain, Outcome::kAgain, Outcome::kDelivered});
  const std::string a = Insert("a");
  Happens(a, "HANG");
  Happens(a, "COMPLETED");
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 2; }));
  EXPECT_THAT(Attempts(),
              ElementsAre(ElementsAre("a HANG"), ElementsAre("a HANG"), ElementsAre("a HANG"),
                          ElementsAre("a HANG"), ElementsAre("a COMPLETED")));
  EXPECT_EQ(failed_.load(), 3);
  const MutexLock lock(&mutex_);
  EXPECT_THAT(pauses_after_, ElementsAre(1, 2, 3));
}

TEST_F(DeliveryTest, WhatIsRefusedIsCountedAndTheNextEventIsTold) {
  Start();
  Answer({Outcome::kRefused, Outcome::kDelivered});
  const std::string a = Insert("a");
  Happens(a, "HANG");
  Happens(a, "COMPLETED");
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 1; }));
  EXPECT_THAT(Sent(), ElementsAre("a COMPLETED"));
  EXPECT_EQ(ToldOf("refused"), 1);
}

TEST_F(DeliveryTest, ARestartTellsWhatWaitedAndNothingTwice) {
  Start();
  const std::string a = Insert("a");
  Happens(a, "HANG");
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 1; }));
  Answer({Outcome::kAgain});
  Happens(a, "COMPLETED");
  ASSERT_TRUE(Within(kPatience, [&] { return failed_ > 0; }));
  EXPECT_GT(delivery_->waiting_since(), 0);
  Stop();
  Reopen();
  Answer({Outcome::kDelivered});
  Start();
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 2; }));
  EXPECT_THAT(Sent(), ElementsAre("a HANG", "a COMPLETED"));
}

TEST_F(DeliveryTest, ADayOldEventIsGivenUpAfterAnHourOfFailuresAndLaterOnesWait) {
  Start();
  Answer({Outcome::kAgain});
  const std::string a = Insert("a");
  Happens(a, "HANG");
  ASSERT_TRUE(Within(kPatience, [&] { return failed_ > 0; }));
  clock_.Advance(absl::Hours(23));
  Happens(a, "COMPLETED");
  const int before = failed_;
  ASSERT_TRUE(Within(kPatience, [&] { return failed_ > before + 3; }));
  EXPECT_EQ(ToldOf("given_up"), 0);
  clock_.Advance(absl::Hours(2));
  ASSERT_TRUE(Within(kPatience, [&] { return ToldOf("given_up") == 1; }));
  Answer({Outcome::kDelivered});
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 1; }));
  EXPECT_THAT(Sent(), ElementsAre("a COMPLETED"));
}

TEST_F(DeliveryTest, AClockThatIsSetADayAheadGivesUpNothingAtOnce) {
  Start();
  Answer({Outcome::kAgain});
  Happens(Insert("a"), "HANG");
  ASSERT_TRUE(Within(kPatience, [&] { return failed_ > 0; }));
  clock_.JumpWall(absl::Hours(48));
  const int before = failed_;
  ASSERT_TRUE(Within(kPatience, [&] { return failed_ > before + 3; }));
  EXPECT_EQ(ToldOf("given_up"), 0);
}

TEST_F(DeliveryTest, EventsOfADeletedJobAreNotTold) {
  Start();
  Answer({Outcome::kAgain});
  const std::string a = Insert("a");
  Happens(a, "HANG");
  ASSERT_TRUE(Within(kPatience, [&] { return failed_ > 0; }));
  ASSERT_OK(store_
                ->Update(a,
                         [](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                           job->mutable_job()->set_state(v1::Job::STATE_FAILED);
                           return absl::OkStatus();
                         })
                .status());
  ASSERT_OK(store_->Delete(a, DeletedBy::kUser, "").status());
  ASSERT_TRUE(Within(kPatience, [&] { return delivery_->waiting_since() == 0; }));
  Answer({Outcome::kDelivered});
  Happens(Insert("b"), "HANG");
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 1; }));
  EXPECT_THAT(Sent(), ElementsAre("b HANG"));
}

TEST_F(DeliveryTest, ABurstIsPutTogetherInMessagesOfTwentyEvents) {
  most_ = kMostTogether;
  pauses_.gathers = absl::Milliseconds(300);
  Start();
  const std::string a = Insert("a");
  for (int i = 0; i < 30; ++i) Happens(a, "HANG");
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 30; }));
  EXPECT_THAT(Attempts()[0], SizeIs(::testing::Gt(1u)));
  for (const auto& message : Attempts()) EXPECT_THAT(message, SizeIs(::testing::Le(20u)));
}

TEST_F(DeliveryTest, ManyEventsThatConcernNobodyArePassed) {
  Start();
  const std::string a = Insert("a");
  for (int i = 0; i < 200; ++i) Happens(a, "PLACED");
  Happens(a, "HANG");
  ASSERT_TRUE(Within(kPatience, [&] { return Sent().size() == 1; }));
  const int64_t done = *store_->LastEvent();
  EXPECT_TRUE(Within(kPatience, [&] { return progress_->Done("ops") == done; }));
}

TEST_F(DeliveryTest, ItsEndDoesNotWaitForAPause) {
  pauses_.looks = absl::Hours(1);
  Start();
  const absl::Duration begin = RealClock().Monotonic();
  Stop();
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(10));
  EXPECT_THAT(Sent(), IsEmpty());
}

}  // namespace
}  // namespace nsa::server
