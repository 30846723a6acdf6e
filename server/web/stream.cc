#include "server/web/stream.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/decide/lifecycle.h"
#include "server/web/change_bell.h"
#include "server/web/selection.h"
#include "server/web/views.h"

namespace nsa::server {
namespace {

constexpr int kEventsAtOnce = 200;
constexpr absl::Duration kPause = absl::Milliseconds(500);
// Times that nobody publishes, for example how long a rank makes no progress, are seen this late.
constexpr absl::Duration kLongestWait = absl::Seconds(2);
constexpr absl::Duration kNodesEvery = absl::Seconds(2);
// A stream waits for so many times as long as it has worked, but no longer than that: it takes
// about a twentieth of a processor, however many rows it has.
constexpr int kRest = 19;

// What a stream is about: one job, or the list of those that are chosen.
struct Subject {
  std::string job;
  Selection chosen;
  bool changes_only = false;
};

// What was sent of an object, by its members.
class Changes {
 public:
  // Whether a member has changed since the last call. With `only`, those that have not are removed,
  // except the id; of an object that is new none are.
  bool Take(bool only, Json* object) {
    bool changed = false;
    std::vector<std::string> same;
    for (const auto& [name, value] : object->items()) {
      const size_t key = std::hash<std::string>()(name);
      const size_t hash = std::hash<std::string>()(Text(value));
      const auto known = std::ranges::find(sent_, key, &Member::name);
      if (known != sent_.end() && known->value == hash) {
        same.push_back(name);
        continue;
      }
      if (known == sent_.end()) {
        sent_.push_back({.name = key, .value = hash});
      } else {
        known->value = hash;
      }
      changed = true;
    }
    for (const std::string& name : same) {
      if (only && name != "id") object->erase(name);
    }
    return changed;
  }

 private:
  struct Member {  // hashes: there are many rows
    size_t name = 0;
    size_t value = 0;
  };
  std::vector<Member> sent_;
};

// One open stream, used by one thread.
class Feed {
 public:
  Feed(const Web::Parts& parts, Subject subject, int64_t after,
       std::shared_ptr<std::atomic<int>> streams)
      : parts_(parts),
        job_(std::move(subject.job)),
        chosen_(std::move(subject.chosen)),
        changes_only_(subject.changes_only),
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
      bell_.Wait(std::clamp(kRest * worked_, kPause, kLongestWait), kLongestWait);
      if (parts_.draining) return std::nullopt;
    }
    const absl::Duration begin = parts_.clock.Monotonic();
    std::string text;
    AddWarning(&text);
    AddEvents(&text);
    if (job_.empty()) {
      AddList(&text);
      AddNodes(&text);
    } else {
      AddJob(&text);
    }
    worked_ = parts_.clock.Monotonic() - begin;
    // By this the page knows that the coordinator answers: it does not see comments.
    return text.empty() ? "event: beat\ndata: {}\n\n" : text;
  }

 private:
  void Add(std::string_view event, const Json& data, std::string* text) const {
    absl::StrAppend(text, "id: ", cursor_, "\nevent: ", std::string(event), "\ndata: ", Text(data),
                    "\n\n");
  }

  void AddWarning(std::string* text) {
    std::string warning = parts_.warning();
    if (warning == warning_) return;
    warning_ = std::move(warning);
    Add("warning", Json{{"text", warning_}}, text);
  }

  void AddEvents(std::string* text) {
    const auto events = parts_.store.Events(job_, cursor_, kEventsAtOnce);
    if (!events.ok()) return;
    for (const v1::JobEvent& event : *events) {
      cursor_ = event.sequence();
      ended_.insert(event.job_id());
      Add("event", EventNow(parts_, event), text);
    }
  }

  // Rows of the list that have changed; then, if it has, which rows there are.
  void AddList(std::string* text) {
    const Selected selected = Select(parts_, chosen_, 0);
    Json rows = Json::array();
    Json ids = Json::array();
    std::map<std::string, Sent> sent;
    for (const JobPtr& job : selected.jobs) {
      const std::string& id = job->job().id();
      ids.push_back(id);
      const auto before = sent_.find(id);
      sent[id] = before == sent_.end() ? Sent() : std::move(before->second);
      AddRow(job, &sent[id], &rows);
    }
    sent_ = std::move(sent);
    ended_.clear();
    listed_ = true;
    if (!rows.empty()) Add("rows", rows, text);
    Json list = {{"ids", std::move(ids)},
                 {"matching", selected.matching},
                 {"look", selected.verdict.need},
                 {"groups", GroupsJson(selected.groups)},
                 {"counts", CountsNow(parts_)}};
    if (list != list_) {
      list_ = std::move(list);
      Add("list", list_, text);
    }
    Json verdict = VerdictNow(parts_, selected.verdict);
    if (verdict == verdict_) return;
    verdict_ = std::move(verdict);
    Add("verdict", verdict_, text);
  }

  // What was sent of a row: of a job that has ended it depends on the job alone.
  struct Sent {
    JobPtr job;
    Changes changes;
  };

  void AddRow(const JobPtr& job, Sent* sent, Json* rows) {
    const bool same = std::exchange(sent->job, job) == job;
    if (IsTerminal(job->job().state())) {
      if (same) return;
      // A client that opens a stream has just read the list.
      if (!listed_ && !ended_.contains(job->job().id())) return;
    }
    Json row = RowNow(parts_, job);
    if (sent->changes.Take(changes_only_, &row)) rows->push_back(std::move(row));
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
    Json job = JobNow(parts_, *stored);
    // They change only with the labels, and when the job is resumed with another job file.
    std::string config = job["config_text"].get<std::string>();
    if (config == config_sent_) {
      for (const char* known : {"config", "config_text"}) job.erase(known);
    }
    config_sent_ = std::move(config);
    if (job_sent_.Take(changes_only_, &job)) Add("job", job, text);
  }

  const Web::Parts& parts_;
  const std::string job_;
  const Selection chosen_;
  const bool changes_only_;
  int64_t cursor_;
  const std::shared_ptr<std::atomic<int>> streams_;
  ChangeBell bell_;
  bool lasting_ = true;
  bool first_ = true;
  absl::Duration worked_;             // for the last message
  bool listed_ = false;               // rows were sent
  std::map<std::string, Sent> sent_;  // by job
  std::set<std::string> ended_;       // jobs with events since the last rows
  std::string warning_;
  Json list_;
  Json verdict_;
  absl::Duration nodes_sent_ = -absl::InfiniteDuration();
  Json nodes_;
  std::string config_sent_;
  Changes job_sent_;
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
  auto chosen = Selection::Of(request);
  if (!chosen.ok()) return {.status = 400, .body = "{}"};
  const std::string last = request.Header("last-event-id");
  int64_t after = 0;
  if (!absl::SimpleAtoi(last.empty() ? request.Query("after") : last, &after) || after < 0) {
    after = parts.store.LastEvent().value_or(0);
  }
  const auto feed = std::make_shared<Feed>(parts,
                                           Subject{.job = std::move(job),
                                                   .chosen = *std::move(chosen),
                                                   .changes_only = request.Query("changes") == "1"},
                                           after, streams);
  return {.type = "text/event-stream; charset=utf-8",
          .body = "retry: 2000\n\n",
          .headers = {{"Cache-Control", "no-store"}},
          .more = [feed] { return feed->Next(); }};
}

}  // namespace nsa::server
