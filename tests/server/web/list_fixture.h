// A coordinator whose store has many jobs, and its live page as a client reads it.
#pragma once

#include <poll.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "server/decide/curve.h"
#include "server/decide/lifecycle.h"
#include "server/store/sealed.h"
#include "server/store/sqlite.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/net/http_get.h"

namespace nsa::server {

using Json = nlohmann::json;

// What arrives on a connection in this time, or until `enough` has been read.
inline std::string ReadFor(
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

class ListTest : public ServerTest {
 protected:
  ListTest() { metrics_address_ = "127.0.0.1:0"; }

  absl::Time end_ = absl::UnixEpoch();  // of jobs that have ended

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
    if (IsTerminal(state)) job.set_end_unix_nanos(absl::ToUnixNanos(end_));
    if (state == Job::STATE_FAILED) job.set_reason("RANK_KILLED");
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
    EXPECT_THAT(answer, ::testing::HasSubstr(" 200 ")) << query;
    return answer.substr(std::min(answer.find("\r\n\r\n") + 4, answer.size()));
  }
  Json Fleet(const std::string& query) { return Json::parse(Ask(query)); }

  absl::Status EditJobHere(const v1::EditJobRequest& request) {
    return Call<v1::EditJobResponse>(&v1::CoordinatorService::Stub::EditJob, people_.get(), request)
        .status();
  }

  // Names of the jobs of a reply.
  static std::vector<std::string> Names(const Json& fleet) {
    std::vector<std::string> names;
    for (const Json& job : fleet["jobs"]) names.push_back(job["name"]);
    return names;
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

}  // namespace nsa::server
