#include "client/connect/local/count_data.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/connect/local/local_worker.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A program that does `script` in place of nsa-worker.
std::string Program(const TempDir& dir, const std::string& script) {
  const std::string path = dir / "worker";
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(CountData, SaysWhatTheWorkerCounted) {
  const TempDir dir;
  Interrupt interrupt;
  v1::JobSpec spec;
  spec.set_name("demo");
  const auto counted =
      CountData(spec, Program(dir, R"(test "$1" = "count" && grep -q '^name: demo' "$2" &&
                      echo '{"documents": "12", "droppedDocuments": "3", "tokens": "900"}')"),
                &interrupt);
  ASSERT_OK(counted);
  EXPECT_EQ(counted->documents(), 12);
  EXPECT_EQ(counted->dropped_documents(), 3);
  EXPECT_EQ(counted->tokens(), 900);
}

TEST(CountData, ReadsTheAnswerAmongTheLinesOfTheLog) {
  const TempDir dir;
  Interrupt interrupt;
  std::vector<std::string> log;
  v1::CorpusSummary summary;
  EXPECT_OK(AskWorker(Program(dir, R"(echo '[info] data: 3 rows without a text (null) were skipped'
                                      echo '{"documents": "12"}'; echo '[info] the end')"),
                      {}, &interrupt, &summary,
                      [&](const std::string& line) { log.push_back(line); }));
  EXPECT_EQ(summary.documents(), 12);
  EXPECT_THAT(log, testing::IsSubsetOf({"[info] data: 3 rows without a text (null) were skipped",
                                        "[info] the end"}));
  EXPECT_THAT(AskWorker(Program(dir, "echo 'no answer'"), {}, &interrupt, &summary),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no answer (worker ended")));
}

TEST(CountData, TellsEachLineOfTheLogWhileTheWorkerRuns) {
  const TempDir dir;
  Interrupt interrupt;
  std::vector<std::string> log;
  v1::CorpusSummary summary;
  // The worker waits until its line was reported.
  const std::string told = dir / "told";
  EXPECT_OK(AskWorker(Program(dir, absl::StrCat("echo one; while ! test -e ", told,
                                                "; do sleep 0.01; done; echo '{}'")),
                      {}, &interrupt, &summary, [&](const std::string& line) {
                        log.push_back(line);
                        std::ofstream(told) << line;
                      }));
  EXPECT_THAT(log, testing::ElementsAre("one"));
}

TEST(CountData, SaysWhatTheWorkerSaidWhenItCannotRead) {
  const TempDir dir;
  Interrupt interrupt;
  EXPECT_THAT(CountData({}, Program(dir, "echo 'data.path: no such file'; exit 2"), &interrupt),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("data.path: no such file"), HasSubstr("exit code 2"))));
  EXPECT_THAT(CountData({}, dir / "absent", &interrupt), StatusIs(absl::StatusCode::kNotFound));
}

TEST(CountData, EndsTheWorkerWhenItIsInterrupted) {
  const TempDir dir;
  Interrupt interrupt;
  interrupt.Raise();
  EXPECT_THAT(CountData({}, Program(dir, "exec sleep 600"), &interrupt),
              StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace nsa::client
