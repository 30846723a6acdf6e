#include "server/web/trace_shelf.h"

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TraceShelf::Trace Of(const std::string& job, int64_t now) {
  return {.id = now, .job_id = job, .name = job, .bytes = 1, .file = nullptr};
}

TEST(TraceShelf, KeepsTheNewestOfAllJobs) {
  TraceShelf shelf;
  const int64_t first = shelf.Add(Of("a", 1000)).id;
  for (size_t i = 1; i < TraceShelf::kMostTraces; ++i) {
    shelf.Add(Of("b", 1000 + static_cast<int64_t>(i)));
  }
  EXPECT_OK(shelf.Find("a", first).status());
  const int64_t last = shelf.Add(Of("b", 2000)).id;
  EXPECT_THAT(shelf.Find("a", first).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("record another")));
  EXPECT_THAT(shelf.Of("a"), SizeIs(0));
  EXPECT_THAT(shelf.Of("b"), SizeIs(TraceShelf::kMostTraces));
  EXPECT_EQ(shelf.Of("b").front().id, last) << "the newest first";
}

TEST(TraceShelf, NeverGivesAnIdTwiceWhateverTheClockDoes) {
  TraceShelf shelf;
  const int64_t first = shelf.Add(Of("a", 1000)).id;
  EXPECT_EQ(first, 1000);
  EXPECT_EQ(shelf.Add(Of("a", 1000)).id, 1001);
  EXPECT_EQ(shelf.Add(Of("a", 10)).id, 1002);
}

TEST(TraceShelf, ATraceBelongsToItsJobAndGoesWithIt) {
  TraceShelf shelf;
  const int64_t id = shelf.Add(Of("a", 1000)).id;
  EXPECT_THAT(shelf.Find("b", id).status(), StatusIs(absl::StatusCode::kNotFound));
  shelf.Forget("b");
  EXPECT_OK(shelf.Find("a", id).status());
  shelf.Forget("a");
  EXPECT_THAT(shelf.Find("a", id).status(), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace nsa::server
