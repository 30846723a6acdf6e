// How long the list of the live page takes with 10,000 jobs in the store, and how many bytes.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

#include "tests/server/web/list_fixture.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

constexpr int kJobs = 10'000;
constexpr int kRequests = 10;
// What a request may take of a processor, as a multiple of what Reference() takes: both are slower
// on a processor that is shared with other work.
constexpr double kRequestCost = 1.5;

// Processor time of this process, the coordinator in it included.
double ProcessorSeconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// Writes and reads JSON, about 40 ms of a processor.
void Reference() {
  Json rows = Json::array();
  for (int i = 0; i < 2'000; ++i) {
    rows.push_back({{"id", i}, {"name", absl::StrCat("job-", i)}, {"loss", 1.0 / (i + 1)}});
  }
  EXPECT_EQ(Json::parse(rows.dump()), rows);
}

class ManyJobsTest : public ListTest {
 protected:
  // The processor time of the process meanwhile.
  static double SecondsWhile(const std::function<void()>& act) {
    const double before = ProcessorSeconds();
    act();
    return ProcessorSeconds() - before;
  }
  // That of a request, the mean of some.
  double SecondsOf(const std::string& query) {
    return SecondsWhile([&] {
             for (int i = 0; i < kRequests; ++i) Ask(query);
           }) /
           kRequests;
  }
  static double MostSeconds() {
    const double reference = SecondsWhile([] {
                               for (int i = 0; i < kRequests; ++i) Reference();
                             }) /
                             kRequests;
    std::printf("reference: %.1f ms of a processor\n", 1e3 * reference);
    return kRequestCost * reference;
  }
};

TEST_F(ManyJobsTest, ARequestForTheListIsQuickAndSmall) {
  Fill(Job::STATE_SUCCEEDED, 1, kJobs - 10, 0);
  Fill(Job::STATE_QUEUED, kJobs - 9, 10, 0);
  const Json fleet = Fleet("");
  EXPECT_EQ(fleet["matching"], kJobs);
  EXPECT_EQ(fleet["jobs"].size(), 200u);
  EXPECT_EQ(fleet["jobs"][0]["name"], "job-10000") << "active jobs come first, the newest of them";
  EXPECT_EQ(fleet["jobs"][10]["name"], "job-9990");
  EXPECT_EQ(fleet["counts"]["SUCCEEDED"], kJobs - 10);
  for (const std::string query : {"", "?offset=9000", "?state=FAILED", "?name=job-77",
                                  "?label=number%3D1234", "?state=ended&label=team%3Dodd"}) {
    const double seconds = SecondsOf(query);
    const size_t bytes = Ask(query).size();
    std::printf("fleet%s: %.1f ms of a processor, %zu bytes\n", query.c_str(), 1e3 * seconds,
                bytes);
    EXPECT_LT(seconds, MostSeconds()) << query;
    EXPECT_LT(bytes, 300'000u) << query;
  }
}

TEST_F(ManyJobsTest, CurvesOfAPageOfLongJobsDoNotHoldTheListUp) {
  constexpr int kLong = 200;
  Fill(Job::STATE_SUCCEEDED, 1, kLong, static_cast<int>(kStepBuckets));
  const double before = ProcessorSeconds();
  Json fleet = Fleet("");
  const double cold = ProcessorSeconds() - before;
  std::printf("200 long jobs: %.1f ms for the first request\n", 1e3 * cold);
  EXPECT_LT(cold, 3 * MostSeconds());
  const auto unread = [&] {
    return std::ranges::count_if(fleet["jobs"],
                                 [](const Json& job) { return job["spark"].is_null(); });
  };
  // At least one more with each request.
  for (int request = 0; request < kLong && unread() > 0; ++request) fleet = Fleet("");
  EXPECT_EQ(unread(), 0);
  for (const Json& job : fleet["jobs"]) {
    EXPECT_THAT(job["spark"].size(), AllOf(Ge(24u), Le(48u))) << job["name"];
  }
  EXPECT_LT(SecondsOf(""), MostSeconds());
}

TEST_F(ManyJobsTest, AStreamSendsTheRowsOfItsListOnly) {
  Fill(Job::STATE_QUEUED, 1, kJobs, 0);
  const int64_t cursor = Fleet("")["cursor"];
  const double idle = SecondsWhile([&] { absl::SleepFor(absl::Seconds(3)); });
  const Fd stream = Open(absl::StrCat("?rows=50&after=", cursor));
  std::string text;
  const double used = SecondsWhile([&] {
    text = ReadRows(stream, 50);
    text += ReadFor(stream, absl::Seconds(3));
  });
  std::printf("stream of 50 of 10,000 active jobs: %zu bytes and %.0f ms of a processor in 3 s\n",
              text.size(), 1e3 * (used - idle));
  EXPECT_LT(text.size(), 100'000u);
  EXPECT_LT(used - idle, 6 * MostSeconds());
  const std::set<std::string> rows = Rows(text);
  EXPECT_EQ(rows.size(), 50u);
  EXPECT_TRUE(rows.contains("job-10000") && rows.contains("job-9951")) << "the newest";
  const std::vector<Json> lists = Messages(text, "list");
  ASSERT_EQ(lists.size(), 1u) << "it has not changed";
  EXPECT_EQ(lists[0]["ids"].size(), 50u);
  EXPECT_EQ(lists[0]["matching"], kJobs);
  EXPECT_EQ(lists[0]["counts"]["QUEUED"], kJobs);

  const std::string newest = Submit(Spec("newest"));
  text = ReadFor(stream, absl::Minutes(2), [&](const std::string& read) {
    const std::vector<Json> all = Messages(read, "list");
    return !all.empty() && all.back()["ids"][0] == newest && Rows(read).contains("newest");
  });
  const std::vector<Json> later = Messages(text, "list");
  ASSERT_FALSE(later.empty());
  EXPECT_EQ(later.back()["ids"][0], newest);
  EXPECT_EQ(later.back()["matching"], kJobs + 1);
  EXPECT_TRUE(Rows(text).contains("newest"));
}

}  // namespace
}  // namespace nsa::server
