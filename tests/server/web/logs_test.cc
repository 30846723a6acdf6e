// The logs of ranks over HTTP.
#include <filesystem>
#include <fstream>

#include "tests/server/web/list_fixture.h"

namespace nsa::server {
namespace {

class LogsTest : public ListTest {
 protected:
  // A job that runs, with so many lines in the log of its rank.
  void WriteLog(int lines, const std::string& front = "") {
    const std::filesystem::path folder = folder_ / "state/logs/j000000000001";
    std::filesystem::create_directories(folder);
    std::ofstream log(folder / "rank-0000.gen-000001.0000000000000000.log");
    for (int line = 1; line <= lines; ++line) log << front << "line " << line << "\n";
    log.close();
    Fill(Job::STATE_RUNNING, 1, 1, 0);
  }
  std::string Log(const std::string& query) {
    return HttpGet(server_->metrics_address(),
                   absl::StrCat("/api/v1/jobs/j000000000001/log", query));
  }
};

TEST_F(LogsTest, TheEndOfALogIsShownAndAllOfItIsAFile) {
  WriteLog(20'000);  // more than a chunk
  const std::string end = Log("?lines=2");
  EXPECT_THAT(end, ::testing::HasSubstr(R"("text":"line 19999\nline 20000\n")"));
  const std::string file = Log("?rank=0&file=1");
  EXPECT_THAT(file, ::testing::HasSubstr("Content-Disposition: attachment"));
  EXPECT_THAT(file, ::testing::HasSubstr("\r\n\r\nline 1\nline 2\n"));
  EXPECT_TRUE(file.ends_with("\nline 20000\n")) << file.substr(file.size() - 40);
}

// Of long lines there are fewer: the last ones.
TEST_F(LogsTest, TheEndOfALogOfLongLinesIsItsEnd) {
  WriteLog(1'500, std::string(600, 'x'));
  const std::string end = Log("?lines=1000");
  EXPECT_THAT(end, ::testing::HasSubstr(R"(line 1500\n"})"));
  EXPECT_THAT(end, ::testing::Not(::testing::HasSubstr("line 1000\\n")));
  EXPECT_LT(end.size(), 270u << 10);
  EXPECT_GT(end.size(), 250u << 10);
}

TEST_F(LogsTest, ARankThatTheJobDoesNotHaveIsRefused) {
  WriteLog(1);
  for (const char* query : {"?rank=1", "?rank=1&file=1", "?rank=-1", "?lines=1001"}) {
    EXPECT_THAT(Log(query), ::testing::HasSubstr(" 400 ")) << query;
  }
  EXPECT_THAT(HttpGet(server_->metrics_address(), "/api/v1/jobs/none/log?file=1"),
              ::testing::HasSubstr(" 404 "));
}

}  // namespace
}  // namespace nsa::server
