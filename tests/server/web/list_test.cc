// The list of the live page: which jobs are in it, in which order, and what its stream sends.
#include "server/web/assets.h"
#include "tests/server/web/list_fixture.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

constexpr int kJobs = 600;  // three pages

TEST_F(ListTest, EachJobIsFoundByNameLabelAndState) {
  Fill(Job::STATE_SUCCEEDED, 1, kJobs - 1, 0);
  Fill(Job::STATE_FAILED, kJobs, 1, 0);
  using Names = std::vector<std::string>;
  EXPECT_EQ(ListTest::Names(Fleet("?state=failed")), Names{"job-600"});
  EXPECT_EQ(Fleet("?state=Finished")["matching"], kJobs - 1) << "the title of SUCCEEDED";
  EXPECT_EQ(Fleet("?state=failed")["jobs"][0]["title"], Fleet("")["titles"]["FAILED"]);
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

TEST_F(ListTest, TheVerdictCountsWhatNeedsSomebodyAndAMutedFailureDoesNot) {
  end_ = absl::Now() - absl::Hours(1);
  Fill(Job::STATE_FAILED, 1, 4, 0);
  Fill(Job::STATE_RUNNING, 5, 2, 0);
  Json fleet = Fleet("");
  // The machine of those that run does not report.
  EXPECT_EQ(fleet["verdict"]["words"], "6 need you. 0 of 2 are fine.");
  ASSERT_EQ(fleet["verdict"]["cards"].size(), 6u) << "more than are shown, as some may be seen";
  EXPECT_EQ(fleet["verdict"]["cards"][0]["name"], "job-4") << "the worst and newest";
  EXPECT_EQ(fleet["verdict"]["cards"][0]["cause"], "A rank was killed from outside");
  EXPECT_FALSE(fleet["verdict"]["cards"][0]["actions"].empty());
  EXPECT_TRUE(fleet["jobs"][0]["needs_you"]);

  const std::string id = fleet["jobs"][0]["id"];
  const std::string word = fleet["jobs"][0]["problems"][0]["word"];
  v1::EditJobRequest request;
  request.set_job(id);
  request.add_mute(word);
  ASSERT_OK(EditJobHere(request));
  fleet = Fleet("");
  EXPECT_EQ(fleet["verdict"]["need"], 5);
  EXPECT_EQ(fleet["look"], 5);
  const Json& last = fleet["jobs"].back();
  EXPECT_EQ(last["id"], id) << "with those that have ended";
  EXPECT_FALSE(last["needs_you"]);
  EXPECT_TRUE(last["problems"][0]["muted"]);
  EXPECT_EQ(last["mutes"][0]["problem"], word);
}

TEST_F(ListTest, JobsThatWaitForTheSameFoldIntoOneGroup) {
  Fill(Job::STATE_QUEUED, 1, 3, 0);
  Fill(Job::STATE_SUCCEEDED, 4, 2, 0);
  const Json groups = Fleet("?rows=2")["groups"];
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0]["kind"], "waiting");
  EXPECT_EQ(groups[0]["jobs"], 3);
  EXPECT_EQ(groups[0]["ids"].size(), 2u) << "those that are sent";
  EXPECT_EQ(groups[0]["states"]["QUEUED"], 3);
  EXPECT_EQ(groups[0]["name"], "each needs 1 CPU slot");
  EXPECT_TRUE(Fleet("?name=job-1")["groups"].empty()) << "two would be no gain";
}

TEST_F(ListTest, JobsThatWaitForATimeAreNotAmongThoseThatWaitForSlots) {
  Fill(Job::STATE_QUEUED, 1, 3, 0);
  for (int i = 0; i < 3; ++i) {
    v1::JobSpec spec = Spec(absl::StrCat("later-", i));
    spec.set_not_before("+20h");
    Submit(spec);
  }
  std::set<std::string> names;
  EXPECT_TRUE(Within(absl::Seconds(60), [&] {
    names.clear();
    const Json fleet = Fleet("");
    for (const Json& group : fleet["groups"]) names.insert(group["name"].get<std::string>());
    return names.size() == 2;
  }));
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("each needs 1 CPU slot", "until their start times"));
}

TEST_F(ListTest, ALongReplyIsCompressedForThoseThatTakeIt) {
  Fill(Job::STATE_QUEUED, 1, 50, 0);
  const std::string plain = Ask("");
  const Fd stream =
      HttpSend(server_->metrics_address(),
               "GET /api/v1/fleet HTTP/1.0\r\nAccept-Encoding: gzip, deflate\r\n\r\n");
  const std::string answer = ReadFor(stream, absl::Minutes(1));
  EXPECT_THAT(answer, HasSubstr("Content-Encoding: gzip\r\n"));
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  EXPECT_LT(5 * body.size(), plain.size());
  EXPECT_EQ(Json::parse(Inflate(body))["matching"], 50);
}

TEST_F(ListTest, AStreamOfChangesSendsARowOnceAndThenWhatHasChanged) {
  Fill(Job::STATE_QUEUED, 1, 1, 0);
  const Fd stream = Open("?changes=1&after=0");
  ASSERT_EQ(Messages(ReadRows(stream, 1), "rows").front()[0]["name"], "job-1");
  v1::EditJobRequest request;
  request.set_job("job-1");
  (*request.mutable_set_labels())["new"] = "yes";
  ASSERT_OK(EditJobHere(request));
  Json row;
  ReadFor(stream, absl::Minutes(1), [&row](const std::string& read) {
    for (const Json& rows : Messages(read, "rows")) {
      if (rows[0].contains("labels")) row = rows[0];
    }
    return row.is_object();
  });
  ASSERT_TRUE(row.is_object());
  EXPECT_EQ(row["labels"]["new"], "yes");
  EXPECT_TRUE(row.contains("id"));
  EXPECT_FALSE(row.contains("name")) << row;
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
