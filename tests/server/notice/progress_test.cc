// How far notices have come, over restarts.
#include "server/notice/progress.h"

#include <sys/stat.h>

#include <fstream>

#include "gmock/gmock.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

class NoticeProgressTest : public ::testing::Test {
 protected:
  std::unique_ptr<NoticeProgress> Open(const std::vector<std::string>& names, int64_t last) {
    auto progress = NoticeProgress::Open(folder_.path(), names, last, clock_);
    EXPECT_OK(progress.status());
    return progress.ok() ? *std::move(progress) : nullptr;
  }
  // As after kill -9: nothing is written by a destructor.
  std::unique_ptr<NoticeProgress> OpenAfterAKill(const std::vector<std::string>& names,
                                                 int64_t last) {
    const TempDir copy;
    std::filesystem::copy(folder_.path(), copy / "state");
    auto progress = NoticeProgress::Open(copy / "state", names, last, clock_);
    EXPECT_OK(progress.status());
    return progress.ok() ? *std::move(progress) : nullptr;
  }

  TempDir folder_;
  FakeClock clock_;
};

TEST_F(NoticeProgressTest, ANewNoticeTellsNothingOfThePast) {
  EXPECT_EQ(Open({"a"}, 100)->Done("a"), 100);
  const auto later = Open({"a", "b"}, 150);
  EXPECT_EQ(later->Done("a"), 100) << "what happened meanwhile is reported";
  EXPECT_EQ(later->Done("b"), 150);
}

TEST_F(NoticeProgressTest, TheFirstPlaceOfANoticeIsOnDiskAtOnce) {
  const auto progress = Open({"a"}, 100);
  EXPECT_EQ(OpenAfterAKill({"a"}, 180)->Done("a"), 100);
}

TEST_F(NoticeProgressTest, WhatWasDeliveredIsOnDiskWhenSetReturns) {
  const auto progress = Open({"a", "b"}, 100);
  ASSERT_OK(progress->Set("a", 107));
  const auto after = OpenAfterAKill({"a", "b"}, 180);
  EXPECT_EQ(after->Done("a"), 107);
  EXPECT_EQ(after->Done("b"), 100);
}

TEST_F(NoticeProgressTest, SkippedEventsAreWrittenEveryTenSecondsAndAtTheEnd) {
  auto progress = Open({"a"}, 100);
  clock_.Advance(absl::Seconds(1));
  ASSERT_OK(progress->Skip("a", 130));
  EXPECT_EQ(progress->Done("a"), 130);
  EXPECT_EQ(OpenAfterAKill({"a"}, 180)->Done("a"), 100);
  clock_.Advance(absl::Seconds(10));
  ASSERT_OK(progress->Skip("a", 140));
  EXPECT_EQ(OpenAfterAKill({"a"}, 180)->Done("a"), 140);
  ASSERT_OK(progress->Skip("a", 150));
  progress.reset();
  EXPECT_EQ(Open({"a"}, 180)->Done("a"), 150);
}

TEST_F(NoticeProgressTest, ARemovedNoticeIsForgotten) {
  Open({"a", "b"}, 100);
  Open({"b"}, 120);
  EXPECT_EQ(Open({"a", "b"}, 150)->Done("a"), 150);
  Open({}, 160);
  EXPECT_EQ(Open({"b"}, 170)->Done("b"), 170);
}

TEST_F(NoticeProgressTest, WithoutNoticesThereIsNoFile) {
  Open({}, 100);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(NoticeProgressTest, APlaceBeyondTheStoreIsBroughtBack) {
  ASSERT_OK(Open({"a"}, 100)->Set("a", 500));
  EXPECT_EQ(Open({"a"}, 200)->Done("a"), 200);
}

TEST_F(NoticeProgressTest, OnlyItsOwnerReadsIt) {
  Open({"a"}, 100);
  struct stat info {};
  ASSERT_EQ(stat((folder_ / "notices.pb").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(NoticeProgressTest, ADamagedFileIsNamedWithTheRemedy) {
  Open({"a"}, 100);
  {
    std::fstream file(folder_ / "notices.pb", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3);
    file.put('\x7f');
  }
  EXPECT_THAT(NoticeProgress::Open(folder_.path(), {"a"}, 200, clock_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("notices.pb is damaged")));
  std::filesystem::resize_file(folder_ / "notices.pb", 1 << 20);
  EXPECT_THAT(NoticeProgress::Open(folder_.path(), {"a"}, 200, clock_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1048576 bytes, 65536")));
}

}  // namespace
}  // namespace nsa::server
