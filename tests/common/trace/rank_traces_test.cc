// Traces of ranks on their way into one: parts, bounds, names of files.
#include "common/trace/rank_traces.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/trace/merge_traces.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::ProfileJobResponse Part(int rank, int64_t size, int64_t offset, const std::string& data) {
  v1::ProfileJobResponse part;
  part.set_rank(rank);
  part.set_size(size);
  part.set_offset(offset);
  part.set_data(data);
  return part;
}

TEST(RankTraces, KeepsPartsInFilesWithoutNames) {
  TempDir folder;
  RankTraces traces(folder.path().string());
  EXPECT_OK(traces.Take(Part(1, 6, 0, "abc")));
  EXPECT_FALSE(traces.ranks().at(1).complete());
  EXPECT_OK(traces.Take(Part(1, 6, 3, "def")));
  EXPECT_TRUE(traces.ranks().at(1).complete());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  char text[7] = {};
  EXPECT_EQ(pread(traces.ranks().at(1).file.get(), text, 6, 0), 6);
  EXPECT_STREQ(text, "abcdef");
}

TEST(RankTraces, TakeNoMoreThanTheyMayOfAllRanksTogether) {
  TempDir folder;
  RankTraces traces(folder.path().string(), 10);
  EXPECT_OK(traces.Take(Part(0, 6, 0, "abcdef")));
  EXPECT_THAT(traces.Take(Part(1, 6, 0, "abcde")),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("more than 10 bytes")));
  EXPECT_OK(traces.Take(Part(1, 6, 0, "abcd")));
}

TEST(RankTraces, RefuseWhatDoesNotContinueThemAndNameRanksWithoutATrace) {
  TempDir folder;
  RankTraces traces(folder.path().string());
  EXPECT_THAT(traces.Take(Part(0, 6, 3, "def")), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(traces.Take(Part(0, 2, 0, "abc")), StatusIs(absl::StatusCode::kDataLoss));
  v1::ProfileJobResponse failed;
  failed.set_rank(1);
  failed.set_error("it ended");
  EXPECT_OK(traces.Take(failed));
  EXPECT_OK(traces.Take(Part(2, 1, 0, "x")));
  EXPECT_THAT(traces.Problems(), ElementsAre("rank 0: its trace is not whole", "rank 1: it ended"));
}

TEST(RankTraces, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(NamelessFile("/nowhere/at/all").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all")));
}

TEST(TraceFileName, HasNoCharacterThatAHeaderOrAShellWouldObey) {
  const TraceTotals totals{.first_step = 121, .last_step = 123};
  EXPECT_EQ(TraceFileName("demo", totals), "demo-steps-121-123.json.gz");
  EXPECT_EQ(TraceFileName("a\"; b=\r\n/../ü", totals), "a___b____..___-steps-121-123.json.gz");
  EXPECT_EQ(TraceFileName("-rf", totals), "_rf-steps-121-123.json.gz");
  EXPECT_EQ(TraceFileName(".x", totals), "_x-steps-121-123.json.gz");
}

}  // namespace
}  // namespace nsa
