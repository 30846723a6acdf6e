// The list of the live page: which jobs are in it, in which order, and what its stream sends.
#include "tests/server/web/list_fixture.h"
#include "tests/testing/file_size_limit.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

constexpr int kJobs = 600;  // three pages

TEST_F(ListTest, EachJobIsFoundByNameLabelAndState) {
  Fill(Job::STATE_SUCCEEDED, 1, kJobs - 1, 0);
  Fill(Job::STATE_FAILED, kJobs, 1, 0);
  using Names = std::vector<std::string>;
  EXPECT_EQ(ListTest::Names(Fleet("?state=failed")), Names{"job-600"});
  EXPECT_EQ(ListTest::Names(Fleet("?name=JOB-503")), Names{"job-503"});
  EXPECT_EQ(ListTest::Names(Fleet("?name=j000000000001")), Names{"job-1"});
  EXPECT_EQ(ListTest::Names(Fleet("?label=number%3D432")), Names{"job-432"});
  EXPECT_EQ(Fleet("?label=team%3Deven")["matching"], kJobs / 2);
  EXPECT_EQ(Fleet("?state=active")["matching"], 0);
  EXPECT_EQ(ListTest::Names(Fleet("?state=ended&label=team%3Dodd&name=job-11")).back(), "job-11");
  std::set<std::string> all;
  for (int offset = 0; offset < kJobs; offset += 200) {
    for (const std::string& name : ListTest::Names(Fleet(absl::StrCat("?offset=", offset)))) {
      EXPECT_TRUE(all.insert(name).second) << name << " comes twice";
    }
  }
  EXPECT_EQ(all.size(), static_cast<size_t>(kJobs));
}

TEST_F(ListTest, AStreamOfAFilteredListSaysNothingOfOtherJobs) {
  Fill(Job::STATE_SUCCEEDED, 1, 100, 0);
  Fill(Job::STATE_QUEUED, 101, 100, 0);
  const int64_t cursor = Fleet("")["cursor"];
  const Fd stream = Open(absl::StrCat("?label=number%3D150&after=", cursor));
  const Fd ended = Open(absl::StrCat("?state=ended&after=", cursor));
  std::string text = ReadRows(stream, 1);
  text += ReadFor(stream, absl::Seconds(2));
  const std::vector<Json> rows = Messages(text, "rows");
  ASSERT_EQ(rows.size(), 1u);
  ASSERT_EQ(rows[0].size(), 1u);
  EXPECT_EQ(rows[0][0]["name"], "job-150");
  EXPECT_EQ(Messages(text, "list")[0]["matching"], 1);
  std::string quiet = ReadRows(ended, 0);
  quiet += ReadFor(ended, absl::Seconds(2));
  EXPECT_TRUE(Messages(quiet, "rows").empty()) << "jobs that ended before were read with the list";
  ASSERT_EQ(Messages(quiet, "list").size(), 1u);
  EXPECT_EQ(Messages(quiet, "list")[0]["matching"], 100);
  for (const char* wrong : {"?rows=1001", "?rows=-1", "?rows=x"}) {
    EXPECT_THAT(HttpGet(server_->metrics_address(), absl::StrCat("/api/v1/stream", wrong)),
                HasSubstr(" 400 "));
    EXPECT_THAT(HttpGet(server_->metrics_address(), absl::StrCat("/api/v1/fleet", wrong)),
                HasSubstr(" 400 "));
  }
}

TEST_F(ListTest, JobsThatHoldSlotsComeBeforeThoseThatWait) {
  Fill(Job::STATE_RUNNING, 1, 1, 0);
  Fill(Job::STATE_SUCCEEDED, 2, 1, 0);
  Fill(Job::STATE_QUEUED, 3, 300, 0);
  const std::vector<std::string> names = Names(Fleet("?rows=303"));
  ASSERT_EQ(names.size(), 302u);
  EXPECT_EQ(names[0], "job-1");
  EXPECT_EQ(names[1], "job-302");
  EXPECT_EQ(names[300], "job-3");
  EXPECT_EQ(names[301], "job-2");
}

TEST_F(ListTest, WhatFailedInTheLastDayComesBeforeWhatWaits) {
  Fill(Job::STATE_QUEUED, 1, 300, 0);
  end_ = absl::Now() - absl::Hours(25);
  Fill(Job::STATE_FAILED, 301, 1, 0);
  end_ = absl::Now() - absl::Hours(23);
  Fill(Job::STATE_FAILED, 302, 2, 0);
  Fill(Job::STATE_SUCCEEDED, 304, 1, 0);
  const Json fleet = Fleet("?rows=400");
  const std::vector<std::string> names = Names(fleet);
  ASSERT_EQ(names.size(), 304u);
  EXPECT_EQ(names[0], "job-303");
  EXPECT_EQ(names[1], "job-302");
  EXPECT_EQ(names[2], "job-300");
  EXPECT_EQ(names[303], "job-301");
  EXPECT_EQ(fleet["look"], 2);
  EXPECT_THAT(Names(Fleet("?state=look")), ::testing::ElementsAre("job-303", "job-302"));
  EXPECT_EQ(Fleet("?state=queued")["look"], 2) << "whatever is shown";
}

TEST_F(ListTest, AStreamWithoutNewsHasABeat) {
  Restart();  // with a page
  const Fd stream = Open("?after=0");
  EXPECT_THAT(ReadFor(stream, absl::Minutes(1),
                      [](const std::string& text) {
                        return text.find("event: beat\ndata: {}\n\n") != std::string::npos;
                      }),
              HasSubstr("event: beat"));
}

TEST_F(ListTest, AStreamWarnsWhileTheStoreFails) {
  Restart();  // with a page
  const Fd stream = Open("?after=0");
  const auto read_warning = [&](bool failing) {
    std::string last;
    ReadFor(stream, absl::Minutes(1), [&](const std::string& text) {
      for (const Json& message : Messages(text, "warning")) last = message["text"];
      return text.find("event: warning") != std::string::npos && last.empty() != failing;
    });
    return last;
  };
  {
    const FileSizeLimit full(1);
    EXPECT_FALSE(TrySubmit(Spec("refused")).ok());
    EXPECT_THAT(read_warning(true), HasSubstr("stored last"));
  }
  Submit(Spec("stored"));
  EXPECT_EQ(read_warning(false), "");
}

}  // namespace
}  // namespace nsa::server
