#include "tests/server/act/retention_fixture.h"

namespace nsa::server {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class RetentionTest : public RetentionFixture {};

TEST_F(RetentionTest, KeepsEverythingUnlessItIsToldOtherwise) {
  const std::string id = Insert(10'000 * kDay);
  Pass(absl::Minutes(30));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(id));
}

TEST_F(RetentionTest, DeletesWhatEndedLongEnoughAgoAndNothingElse) {
  const std::string running = Insert(-kDay), young = Insert(29 * kDay), old = Insert(31 * kDay),
                    older = Insert(300 * kDay);
  Restart(30 * kDay);
  Pass(Retention::kSteady + absl::Minutes(2));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(running, young));
  EXPECT_EQ(by_age_, 2);
  EXPECT_EQ(by_user_, 0);
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_THAT(Names(folder_ / "logs"), UnorderedElementsAre(running, young));
  EXPECT_THAT(Names(folder_ / "dumps"), UnorderedElementsAre(running + ".gen-000001.hang.txt",
                                                             young + ".gen-000001.hang.txt"));
  EXPECT_EQ(Rows("jobs"), 2);
  EXPECT_EQ(Rows("events"), 2);
  EXPECT_EQ(Rows("records"), 2 * 1'200);
  clock_.Advance(kDay);
  Pass(Retention::kSteady + absl::Minutes(2));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(running));
}

TEST_F(RetentionTest, AClockThatIsSetIsNotBelievedAtOnce) {
  const std::string id = Insert(kDay);
  Restart(30 * kDay);
  Pass(Retention::kSteady + absl::Minutes(2));
  clock_.JumpWall(3'650 * kDay);
  Pass(Retention::kSteady - absl::Minutes(1));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(id));
  clock_.JumpWall(-3'650 * kDay);  // the wrong clock is set right
  Pass(absl::Hours(1));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(id));
}

TEST_F(RetentionTest, RemovesAtOnceWhatDeletedJobsHaveLeft) {
  const std::string id = Insert(kDay), other = Insert(kDay);
  ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  Pass(absl::Seconds(1));
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_THAT(Jobs(), UnorderedElementsAre(other));
  EXPECT_THAT(Names(folder_ / "logs"), UnorderedElementsAre(other));
  EXPECT_EQ(Rows("records"), 1'200);
}

TEST_F(RetentionTest, LeavesTheRestToTheNextCoordinator) {
  const std::string id = Insert(kDay);
  ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  draining_ = true;
  Pass(absl::Seconds(1));
  EXPECT_EQ(store_->NextToPurge(), id);
  Restart(absl::ZeroDuration());
  draining_ = false;
  Pass(absl::Seconds(1));
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_EQ(Rows("records"), 0);
  EXPECT_THAT(Names(folder_ / "logs"), IsEmpty());
}

TEST_F(RetentionTest, WhatCannotBeRemovedHoldsUpNothingElseAndIsCounted) {
  const std::string one = Insert(kDay), other = Insert(kDay), old = Insert(31 * kDay);
  const std::string first = std::min(one, other), second = std::max(one, other);
  Restart(30 * kDay);
  const auto stubborn = folder_ / "dumps" / (first + ".folder");
  std::filesystem::create_directories(stubborn / "full");
  ASSERT_OK(store_->Delete(first, DeletedBy::kUser, "").status());
  ASSERT_OK(store_->Delete(second, DeletedBy::kUser, "").status());
  Pass(absl::Seconds(5));
  EXPECT_EQ(store_->NextToPurge(), first);
  EXPECT_EQ(store_->NextToPurge({first}), "");
  EXPECT_EQ(failed_, std::vector<std::string>{"delete"});
  Pass(Retention::kSteady + absl::Minutes(2));
  EXPECT_THAT(Jobs(), IsEmpty()) << "by age too";
  EXPECT_EQ(store_->NextToPurge(), first);
  EXPECT_GT(failed_.size(), 5u) << "tried again every minute";
}

TEST_F(RetentionTest, WhatCannotBeRemovedIsTriedAgain) {
  const std::string id = Insert(kDay);
  const auto stubborn = folder_ / "dumps" / (id + ".folder");
  std::filesystem::create_directories(stubborn / "full");
  ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  Pass(absl::Seconds(5));
  EXPECT_EQ(store_->NextToPurge(), id);
  std::filesystem::remove(stubborn / "full");
  Pass(absl::Seconds(5));
  EXPECT_EQ(store_->NextToPurge(), id) << "not every second";
  Pass(absl::Minutes(1));
  EXPECT_EQ(store_->NextToPurge(), "");
}

TEST_F(RetentionTest, TheFileShrinksAfterADeletion) {
  std::vector<std::string> ids;
  for (int i = 0; i < 120; ++i) ids.push_back(Insert(kDay));
  const int64_t before = store_->SizeNow()->bytes;
  ASSERT_GT(before, 6 << 20);
  for (const std::string& id : ids) ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  Pass(Retention::kSteady + absl::Minutes(2));
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_LT(store_->SizeNow()->bytes, before / 2);
  EXPECT_THAT(failed_, IsEmpty());
}

}  // namespace
}  // namespace nsa::server
