// How stack dumps reach those who ask for them.
#include "server/act/dump_broker.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(DumpBroker, GivesWhatIsThereAndSaysWhatIsMissing) {
  FakeClock clock;
  DumpBroker broker(clock);
  v1::Job job;
  job.set_id("j");
  std::vector<v1::RankPlacement> ranks(2);
  ranks[0].set_node("a");
  ranks[1].set_node("b");
  ranks[1].set_rank(1);
  std::vector<v1::StackDump> dumps;
  broker.Request(job, ranks, absl::Seconds(5),
                 [&](std::vector<v1::StackDump> got) { dumps = std::move(got); });
  ASSERT_EQ(broker.Wanted("a").size(), 1u);
  v1::ReportDumpRequest report;
  report.set_dump_id(broker.Wanted("a")[0].dump_id());
  report.set_node("b");
  EXPECT_THAT(broker.Report(report), StatusIs(absl::StatusCode::kNotFound)) << "not its dump";
  report.set_node("a");
  report.set_stacks("#0\n");
  EXPECT_OK(broker.Report(report));
  EXPECT_TRUE(broker.Wanted("a").empty()) << "once is enough";
  clock.Advance(absl::Seconds(4));
  broker.Expire();
  EXPECT_TRUE(dumps.empty());
  clock.Advance(absl::Seconds(1));
  broker.Expire();
  ASSERT_EQ(dumps.size(), 2u);
  EXPECT_EQ(dumps[0].stacks(), "#0\n");
  EXPECT_EQ(dumps[0].error(), "");
  EXPECT_THAT(dumps[1].error(), HasSubstr("agent b did not answer within 5.0 s"));
  EXPECT_TRUE(broker.Wanted("b").empty());
}

// A job "j" of ranks 0, 1, … on the node "a", and callers that ask for some of them.
class Dumps : public ::testing::Test {
 protected:
  Dumps() { job_.set_id("j"); }

  static std::vector<v1::RankPlacement> Ranks(const std::vector<int32_t>& numbers) {
    std::vector<v1::RankPlacement> ranks(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      ranks[i].set_node("a");
      ranks[i].set_rank(numbers[i]);
    }
    return ranks;
  }
  absl::Status Ask(const std::vector<int32_t>& ranks, absl::Duration patience = absl::Seconds(5)) {
    return broker_.TryRequest(job_, Ranks(ranks), patience, Note());
  }
  // What a caller got, one word for each rank: its stacks, or "late".
  DumpBroker::Done Note() {
    return [this](const std::vector<v1::StackDump>& dumps) {
      std::string words;
      for (const v1::StackDump& dump : dumps) {
        absl::StrAppend(&words, dump.error().empty() ? dump.stacks() : "late", " ");
      }
      got_.push_back(words);
    };
  }
  // The agent takes every dump that is wanted now. Returns how many there were.
  size_t TakeAll() {
    const std::vector<v1::DumpRequest> wanted = broker_.Wanted("a");
    for (const v1::DumpRequest& request : wanted) {
      v1::ReportDumpRequest report;
      report.set_dump_id(request.dump_id());
      report.set_node("a");
      report.set_stacks(absl::StrCat("rank", request.rank()));
      EXPECT_OK(broker_.Report(report));
    }
    return wanted.size();
  }

  FakeClock clock_;
  DumpBroker broker_{clock_};
  v1::Job job_;
  std::vector<std::string> got_;  // in order of the answers
};

TEST_F(Dumps, ManyWhoAskForARankAtOnceShareOneDump) {
  for (int i = 0; i < 50; ++i) EXPECT_OK(Ask({0, 1}));
  EXPECT_EQ(TakeAll(), 2u) << "one of each rank";
  EXPECT_THAT(got_, SizeIs(50));
  EXPECT_THAT(got_, ::testing::Each("rank0 rank1 "));
  EXPECT_THAT(broker_.Wanted("a"), SizeIs(0));
}

TEST_F(Dumps, ACallerOfSomeRanksSharesThoseThatAreOnTheirWay) {
  EXPECT_OK(Ask({0}));
  const std::string first = broker_.Wanted("a")[0].dump_id();
  EXPECT_OK(Ask({0, 1}));
  ASSERT_THAT(broker_.Wanted("a"), SizeIs(2));
  EXPECT_EQ(broker_.Wanted("a")[0].dump_id(), first) << "the agent is not asked again";
  TakeAll();
  EXPECT_THAT(got_, ElementsAre("rank0 ", "rank0 rank1 "));
}

TEST_F(Dumps, AnAnswerIsForThoseWhoAskedBeforeItAndNotForThoseAfterIt) {
  EXPECT_OK(Ask({0}));
  TakeAll();
  EXPECT_OK(Ask({0}));
  EXPECT_THAT(got_, SizeIs(1));
  EXPECT_EQ(TakeAll(), 1u) << "stacks of now, not of before";
  EXPECT_THAT(got_, SizeIs(2));
}

TEST_F(Dumps, AnotherGenerationOfTheRankIsAnotherProcess) {
  EXPECT_OK(Ask({0}));
  job_.set_generation(1);
  EXPECT_OK(Ask({0}));
  EXPECT_EQ(TakeAll(), 2u);
}

TEST_F(Dumps, WhoeverIsOutOfPatienceLeavesTheOthersWaiting) {
  EXPECT_OK(Ask({0}, absl::Seconds(1)));
  EXPECT_OK(Ask({0}, absl::Seconds(5)));
  clock_.Advance(absl::Seconds(2));
  broker_.Expire();
  EXPECT_THAT(got_, ElementsAre("late "));
  EXPECT_EQ(TakeAll(), 1u) << "the other one still waits";
  EXPECT_THAT(got_, ElementsAre("late ", "rank0 "));
  EXPECT_OK(Ask({0}, absl::Seconds(1)));
  clock_.Advance(absl::Seconds(2));
  broker_.Expire();
  EXPECT_THAT(broker_.Wanted("a"), SizeIs(0)) << "nobody waits, so no rank is stopped for it";
}

TEST_F(Dumps, OneCallerTooManyIsRefusedButNeverTheCoordinatorItself) {
  for (size_t i = 0; i < DumpBroker::kMostWaiting; ++i) ASSERT_OK(Ask({0}));
  EXPECT_THAT(Ask({0}), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("(at most 64)")));
  broker_.Request(job_, Ranks({0}), absl::Seconds(5), Note());
  TakeAll();
  EXPECT_THAT(got_, SizeIs(DumpBroker::kMostWaiting + 1));
  EXPECT_OK(Ask({0})) << "there is room again";
}

}  // namespace
}  // namespace nsa::server
