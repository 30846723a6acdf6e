#include "server/web/stream.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/web/change_bell.h"
#include "server/web/views.h"

namespace nsa::server {
namespace {

constexpr int kEventsAtOnce = 200;
constexpr absl::Duration kPause = absl::Milliseconds(500);
// Times that nobody publishes, for example how long a rank makes no progress, are seen this late.
constexpr absl::Duration kLongestWait = absl::Seconds(2);
constexpr absl::Duration kNodesEvery = absl::Seconds(2);

// One open stream, used by one thread.
class Feed {
 public:
  Feed(const Web::Parts& parts, std::string job, int64_t after,
       std::shared_ptr<std::atomic<int>> streams)
      : parts_(parts),
        job_(std::move(job)),
        cursor_(after),
        streams_(std::move(streams)),
        bell_(&parts_.hub, job_, parts_.clock, parts_.draining) {
    const int open = streams_->fetch_add(1);
    lasting_ = open < kMostStreams;
  }
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;
  ~Feed() { streams_->fetch_sub(1); }

  std::optional<std::string> Next() {
    if (parts_.draining) return std::nullopt;
    if (!std::exchange(first_, false)) {
      if (!lasting_) return std::nullopt;
      bell_.Wait(kPause, kLongestWait);
      if (parts_.draining) return std::nullopt;
    }
    std::string text;
    AddEvents(&text);
    if (job_.empty()) {
      AddRows(&text);
      AddNodes(&text);
    } else {
      AddJob(&text);
    }
    return text.empty() ? ": nothing new\n\n" : text;
  }

 private:
  void Add(std::string_view event, const Json& data, std::string* text) const {
    absl::StrAppend(text, "id: ", cursor_, "\nevent: ", std::string(event), "\ndata: ", Text(data),
                    "\n\n");
  }

  void AddEvents(std::string* text) {
    const auto events = parts_.store.Events(job_, cursor_, kEventsAtOnce);
    if (!events.ok()) return;
    for (const v1::JobEvent& event : *events) {
      cursor_ = event.sequence();
      ended_.insert(event.job_id());
      Add("event", EventJson(event), text);
    }
  }

  // Jobs that are active, and those that have just ended, when their rows have changed.
  void AddRows(std::string* text) {
    Json rows = Json::array();
    std::map<std::string, size_t> sent;
    const auto add = [&](const v1::StoredJob& stored) {
      Json row = RowNow(parts_, stored);
      const size_t hash = std::hash<std::string>()(Text(row));
      const auto before = sent_.find(stored.job().id());
      if (before == sent_.end() || before->second != hash) rows.push_back(std::move(row));
      sent[stored.job().id()] = hash;
    };
    for (const JobPtr& job : parts_.store.Active()) {
      add(*job);
      ended_.erase(job->job().id());
    }
    for (const std::string& id : std::exchange(ended_, {})) {
      if (const auto job = parts_.store.Find(id); job.ok()) add(**job);
    }
    sent_ = std::move(sent);
    if (!rows.empty()) Add("rows", rows, text);
  }

  void AddNodes(std::string* text) {
    const absl::Duration now = parts_.clock.Monotonic();
    if (now - nodes_sent_ < kNodesEvery) return;
    nodes_sent_ = now;
    const Json nodes = NodesNow(parts_);
    if (nodes == nodes_) return;
    nodes_ = nodes;
    Add("nodes", nodes, text);
  }

  void AddJob(std::string* text) {
    const auto stored = parts_.store.Find(job_);
    if (!stored.ok()) return;
    Json job = JobNow(parts_, **stored);
    // They change only when the job is resumed with another job file.
    std::string config = job["config_text"].get<std::string>();
    if (config == config_sent_) {
      for (const char* known : {"config", "config_text"}) job.erase(known);
    }
    config_sent_ = std::move(config);
    std::string now = Text(job);
    if (now == job_sent_) return;
    Add("job", job, text);
    job_sent_ = std::move(now);
  }

  const Web::Parts& parts_;
  const std::string job_;
  int64_t cursor_;
  const std::shared_ptr<std::atomic<int>> streams_;
  ChangeBell bell_;
  bool lasting_ = true;
  bool first_ = true;
  std::map<std::string, size_t> sent_;  // hash of each job's row
  std::set<std::string> ended_;         // jobs with events since the last rows
  absl::Duration nodes_sent_ = -absl::InfiniteDuration();
  Json nodes_;
  std::string config_sent_;
  std::string job_sent_;
};

}  // namespace

HttpReply StreamReply(const Web::Parts& parts, const HttpRequest& request,
                      const std::shared_ptr<std::atomic<int>>& streams) {
  std::string job = request.Query("job");
  if (!job.empty()) {
    const auto found = parts.store.Find(job);
    if (!found.ok()) return {.status = 404, .body = "{}"};
    job = (*found)->job().id();
  }
  const std::string last = request.Header("last-event-id");
  int64_t after = 0;
  if (!absl::SimpleAtoi(last.empty() ? request.Query("after") : last, &after) || after < 0) {
    after = parts.store.LastEvent().value_or(0);
  }
  const auto feed = std::make_shared<Feed>(parts, std::move(job), after, streams);
  return {.type = "text/event-stream; charset=utf-8",
          .body = "retry: 2000\n\n",
          .headers = {{"Cache-Control", "no-store"}},
          .more = [feed] { return feed->Next(); }};
}

}  // namespace nsa::server
