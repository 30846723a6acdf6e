// The list of the live page with 10,000 jobs in the store: time, bytes, and that each job is found.
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <set>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "server/decide/curve.h"
#include "server/store/sealed.h"
#include "server/store/sqlite.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/net/http_get.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using Json = nlohmann::json;

constexpr int kJobs = 10'000;
constexpr int kRequests = 10;
// What the requests of this file may take of a processor; sanitizers make everything slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kRequestSeconds = 0.5;
#else
constexpr double kRequestSeconds = 0.05;
#endif

// Processor time of this process, the coordinator in it included.
double ProcessorSeconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// What arrives on a connection in this time, or until `enough` has been read.
std::string ReadFor(
    const Fd& fd, absl::Duration time,
    const std::function<bool(const std::string&)>& enough = [](const std::string&) {
      return false;
    }) {
  const RealClock clock;
  const absl::Duration end = clock.Monotonic() + time;
  std::string text;
  char buffer[1 << 16];
  while (!enough(text)) {
    const int64_t left = absl::ToInt64Milliseconds(end - clock.Monotonic());
    pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) return text;
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

class ManyJobsTest : public ServerTest {
 protected:
  ManyJobsTest() { metrics_address_ = "127.0.0.1:0"; }

  // Writes jobs into the store in one transaction, each with an event and a curve of so many
  // buckets, and starts the coordinator again. Job N has the name job-N and the label number=N.
  void Fill(Job::State state, int first, int count, int buckets) {
    server_.reset();
    const auto database = *Database::Open(folder_ / "state/jobs.sqlite");
    Transaction transaction = *Transaction::Begin(database.get());
    for (int number = first; number < first + count; ++number) {
      ASSERT_OK(Write(database.get(), state, number));
      for (int step = 1; step <= buckets; ++step) {
        v1::CurveBucket bucket;
        bucket.set_first_step(step);
        bucket.set_last_step(step);
        bucket.set_width(1);
        for (size_t value = 0; value < std::size(kStepValues); ++value) {
          bucket.add_mean(static_cast<float>(step));
          bucket.add_least(static_cast<float>(step));
          bucket.add_greatest(static_cast<float>(step));
          bucket.add_count(1);
        }
        Statement row =
            *database->Prepare("INSERT INTO curve(job, kind, step, body) VALUES(?, 1, ?, ?)");
        ASSERT_OK(row.Bind(1, number).Bind(2, step).BindBlob(3, Seal(bucket)).Run());
      }
    }
    ASSERT_OK(transaction.Commit());
    Start();
  }

  absl::Status Write(Database* database, Job::State state, int number) {
    v1::StoredJob stored;
    Job& job = *stored.mutable_job();
    job.set_id(absl::StrFormat("j%012d", number));
    job.set_name(absl::StrCat("job-", number));
    job.set_state(state);
    job.set_submit_unix_nanos(number * 1'000'000'000LL);
    *job.mutable_spec() = Spec(job.name());
    (*job.mutable_spec()->mutable_labels())["number"] = absl::StrCat(number);
    (*job.mutable_spec()->mutable_labels())["team"] = number % 2 == 0 ? "even" : "odd";
    if (HasGang(state)) {  // on a machine that is not heard from, so that nothing happens to it
      job.set_generation(1);
      stored.add_placements()->set_node("elsewhere");
    }
    v1::JobEvent event;
    event.set_job_id(job.id());
    event.set_reason("SUBMITTED");
    event.set_state(state);
    v1::JobProgress progress;
    progress.set_step(20);
    progress.set_total_steps(20);
    Statement row = *database->Prepare("INSERT INTO jobs(number, id, body) VALUES(?, ?, ?)");
    NSA_RETURN_IF_ERROR(row.Bind(1, number).Bind(2, job.id()).BindBlob(3, Seal(stored)).Run());
    row = *database->Prepare("INSERT INTO progress(job, body) VALUES(?, ?)");
    NSA_RETURN_IF_ERROR(row.Bind(1, number).BindBlob(2, Seal(progress)).Run());
    row = *database->Prepare("INSERT INTO events(job, body) VALUES(?, ?)");
    return row.Bind(1, number).BindBlob(2, Seal(event)).Run();
  }

  std::string Ask(const std::string& query) {
    const std::string answer =
        HttpGet(server_->metrics_address(), absl::StrCat("/api/v1/fleet", query));
    EXPECT_THAT(answer, HasSubstr(" 200 ")) << query;
    return answer.substr(std::min(answer.find("\r\n\r\n") + 4, answer.size()));
  }
  Json Fleet(const std::string& query) { return Json::parse(Ask(query)); }

  // Names of the jobs of a reply.
  static std::vector<std::string> Names(const Json& fleet) {
    std::vector<std::string> names;
    for (const Json& job : fleet["jobs"]) names.push_back(job["name"]);
    return names;
  }

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

  Fd Open(const std::string& query) {
    return HttpSend(server_->metrics_address(),
                    absl::StrCat("GET /api/v1/stream", query, " HTTP/1.0\r\n\r\n"));
  }
  // The whole messages of one kind in a part of a stream.
  static std::vector<Json> Messages(const std::string& text, const std::string& kind) {
    const std::string head = absl::StrCat("event: ", kind, "\ndata: ");
    std::vector<Json> messages;
    for (size_t at = text.find(head); at != std::string::npos; at = text.find(head, at + 1)) {
      const size_t begin = at + head.size();
      const size_t end = text.find('\n', begin);
      if (end == std::string::npos) break;
      messages.push_back(Json::parse(text.substr(begin, end - begin)));
    }
    return messages;
  }
  // Names of the jobs whose rows are there.
  static std::set<std::string> Rows(const std::string& text) {
    std::set<std::string> names;
    for (const Json& message : Messages(text, "rows")) {
      for (const Json& job : message) names.insert(job["name"]);
    }
    return names;
  }
  // Reads a stream until there are so many rows and a list. A machine with much to do takes long.
  static std::string ReadRows(const Fd& stream, size_t rows) {
    return ReadFor(stream, absl::Minutes(2), [&](const std::string& text) {
      return Rows(text).size() >= rows && !Messages(text, "list").empty();
    });
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
    EXPECT_LT(seconds, kRequestSeconds) << query;
    EXPECT_LT(bytes, 300'000u) << query;
  }
}

TEST_F(ManyJobsTest, EachOf10000JobsIsFoundByNameLabelAndState) {
  Fill(Job::STATE_SUCCEEDED, 1, kJobs - 1, 0);
  Fill(Job::STATE_FAILED, kJobs, 1, 0);
  using Names = std::vector<std::string>;
  EXPECT_EQ(ManyJobsTest::Names(Fleet("?state=failed")), Names{"job-10000"});
  EXPECT_EQ(ManyJobsTest::Names(Fleet("?name=JOB-5003")), Names{"job-5003"});
  EXPECT_EQ(ManyJobsTest::Names(Fleet("?name=j000000000001")), Names{"job-1"});
  EXPECT_EQ(ManyJobsTest::Names(Fleet("?label=number%3D4321")), Names{"job-4321"});
  EXPECT_EQ(Fleet("?label=team%3Deven")["matching"], kJobs / 2);
  EXPECT_EQ(Fleet("?state=active")["matching"], 0);
  EXPECT_EQ(ManyJobsTest::Names(Fleet("?state=ended&label=team%3Dodd&name=job-11")).back(),
            "job-11");
  std::set<std::string> all;
  for (int offset = 0; offset < kJobs; offset += 200) {
    for (const std::string& name : ManyJobsTest::Names(Fleet(absl::StrCat("?offset=", offset)))) {
      EXPECT_TRUE(all.insert(name).second) << name << " comes twice";
    }
  }
  EXPECT_EQ(all.size(), static_cast<size_t>(kJobs));
}

TEST_F(ManyJobsTest, CurvesOfAPageOfLongJobsDoNotHoldTheListUp) {
  constexpr int kLong = 200;
  Fill(Job::STATE_SUCCEEDED, 1, kLong, static_cast<int>(kStepBuckets));
  const double before = ProcessorSeconds();
  Json fleet = Fleet("");
  const double cold = ProcessorSeconds() - before;
  std::printf("200 long jobs: %.1f ms for the first request\n", 1e3 * cold);
  EXPECT_LT(cold, 3 * kRequestSeconds);
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
  EXPECT_LT(SecondsOf(""), kRequestSeconds);
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
  EXPECT_LT(used - idle, 6 * kRequestSeconds);
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

TEST_F(ManyJobsTest, AStreamOfAFilteredListSaysNothingOfOtherJobs) {
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

TEST_F(ManyJobsTest, JobsThatHoldSlotsComeBeforeThoseThatWait) {
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

}  // namespace
}  // namespace nsa::server
