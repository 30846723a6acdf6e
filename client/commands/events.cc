// nsactl events: what happened to a job, or to all.
#include <deque>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/connect/collect_jobs.h"
#include "client/connect/follow.h"
#include "client/show/document.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct EventFlags {
  std::string job;
  JobFilter filter;
  std::string since;
  int tail = 0;
  bool follow = false;
};

// The clock of the coordinator may be so much behind this machine's.
constexpr int64_t kSkewNanos = 3'600LL * 1'000'000'000;

// Which events are shown: those since a time, of all jobs or of the jobs that matched at the start.
// With -f a job that is submitted later matches by its labels, unless states were asked for.
class Chosen {
 public:
  Chosen(Client* client, const EventFlags& flags, absl::Time now)
      : client_(client),
        all_(flags.filter.empty()),
        ask_(flags.follow && flags.filter.states.empty()),
        since_(absl::ToUnixNanos(now) - kSkewNanos) {}

  absl::Status Read(const EventFlags& flags, absl::Time now) {
    if (!flags.since.empty()) {
      NSA_ASSIGN_OR_RETURN(const absl::Time first, ParseSince("--since", flags.since, now));
      first_ = absl::ToUnixNanos(first);
    }
    if (all_) return absl::OkStatus();
    NSA_ASSIGN_OR_RETURN(request_, RequestOf(flags.filter));
    NSA_ASSIGN_OR_RETURN(const v1::ListJobsResponse found, CollectJobs(client_, request_, 0));
    for (const v1::Job& job : found.jobs()) known_[job.id()] = true;
    return absl::OkStatus();
  }

  bool Has(const v1::JobEvent& event) {
    if (event.unix_nanos() < first_) return false;
    if (all_) return true;
    const auto known = known_.find(event.job_id());
    if (known != known_.end()) return known->second;
    // An older job would have been found at the start.
    if (!ask_ || event.unix_nanos() < since_) return false;
    const absl::StatusOr<v1::Job> job = client_->GetJob(event.job_id());
    if (!job.ok()) return false;
    return known_[event.job_id()] = HasLabels(*job, request_);
  }

 private:
  Client* client_;
  bool all_;
  bool ask_;
  int64_t since_;
  int64_t first_ = 0;  // time of the first event
  v1::ListJobsRequest request_;
  std::map<std::string, bool> known_;  // by job: whether it matches
};

Colour ColourOf(v1::Severity severity) {
  if (severity == v1::SEVERITY_ERROR) return Colour::kBad;
  return severity == v1::SEVERITY_WARNING ? Colour::kWarning : Colour::kNone;
}

// Columns are as wide as their usual contents, because rows are printed one at a time.
Table EventTable() {
  return Table({{"TIME", false, 25},
                {"JOB", false, 13},
                {"STATE", false, 10},
                {"RANK", true, 4},
                {"REASON", false, 18},
                {"TEXT"}});
}

void AddRow(const v1::JobEvent& event, Table* table) {
  table->Add({Timestamp(event.unix_nanos()),
              event.job_id(),
              {StateTitle(event.state()), StateColour(event.state())},
              event.rank() < 0 ? "-" : absl::StrCat(event.rank()),
              {event.reason(), ColourOf(event.severity())},
              event.text()});
}

// Prints each event as it comes.
class EventPrinter {
 public:
  explicit EventPrinter(Session* session) : session_(*session) {}

  void Print(const v1::JobEvent& event) {
    if (session_.structured()) {
      session_.PrintStreamed(event);
      return;
    }
    Table table = EventTable();
    AddRow(event, &table);
    session_.out() << table.Format(session_.colours(), first_) << std::flush;
    first_ = false;
  }

 private:
  Session& session_;
  bool first_ = true;
};

// The events that are there and chosen, or the last `tail` of them. `request` then asks for later
// ones.
absl::StatusOr<std::deque<v1::JobEvent>> ReadPresentEvents(Client* client, Chosen* chosen, int tail,
                                                           v1::WatchEventsRequest* request) {
  v1::WatchEventsRequest present = *request;
  present.set_follow(false);
  std::deque<v1::JobEvent> events;
  NSA_RETURN_IF_ERROR(client->Stream<v1::WatchEventsResponse>(
      present, [&](const v1::WatchEventsResponse& response) {
        request->set_after_sequence(response.event().sequence());
        if (!chosen->Has(response.event())) return true;
        events.push_back(response.event());
        if (tail > 0 && std::ssize(events) > tail) events.pop_front();
        return true;
      }));
  return events;
}

absl::Status FollowEvents(Session& session, Client* client, v1::WatchEventsRequest request,
                          Chosen* chosen, int tail) {
  EventPrinter printer(&session);
  if (tail > 0) {
    NSA_ASSIGN_OR_RETURN(const auto events, ReadPresentEvents(client, chosen, tail, &request));
    for (const v1::JobEvent& event : events) printer.Print(event);
  }
  const std::string id = request.job();
  return Follow(session, id, [&] {
    return client->Stream<v1::WatchEventsResponse>(
        request, [&](const v1::WatchEventsResponse& response) {
          if (chosen->Has(response.event())) printer.Print(response.event());
          request.set_after_sequence(response.event().sequence());
          return static_cast<bool>(session.out());
        });
  });
}

absl::Status ListEvents(Session& session, Client* client, v1::WatchEventsRequest request,
                        Chosen* chosen, int tail) {
  NSA_ASSIGN_OR_RETURN(const auto events, ReadPresentEvents(client, chosen, tail, &request));
  if (session.structured()) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const v1::JobEvent& event : events) list.push_back(ToJson(event));
    session.PrintDocument({{"events", std::move(list)}});
  } else if (events.empty()) {
    session.Note("no events");
  } else {
    Table table = EventTable();
    for (const v1::JobEvent& event : events) AddRow(event, &table);
    session.PrintTable(table);
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> Events(Session& session, const EventFlags& flags) {
  if (!flags.job.empty() && !flags.filter.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("JOB: ", flags.job,
                     " (none with --state or --label); name a job or choose some, not both"));
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  Chosen chosen(client, flags, session.now());
  NSA_RETURN_IF_ERROR(chosen.Read(flags, session.now()));
  v1::WatchEventsRequest request;
  request.set_follow(flags.follow);
  if (!flags.job.empty()) {
    NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.job));
    request.set_job(job.id());
  }
  NSA_RETURN_IF_ERROR(flags.follow ? FollowEvents(session, client, request, &chosen, flags.tail)
                                   : ListEvents(session, client, request, &chosen, flags.tail));
  return ExitCode::kOk;
}

}  // namespace

void AddEvents(Cli* cli) {
  const auto flags = std::make_shared<EventFlags>();
  Options options =
      cli->Add({.name = "events",
                .what = "Show what happened to a job, or to all jobs",
                .group = "Records",
                .more = "-f prints new events until the job has ended (without JOB: until Ctrl-C), "
                        "also after a restart of the\ncoordinator. -o json prints one document; "
                        "with -f one document per line.",
                .examples = "nsactl events demo\nnsactl events -f --tail 20\n"
                            "nsactl events --since 2h\nnsactl events demo -o json",
                .run = [flags](Session& session) { return Events(session, *flags); }});
  options.OptionalArgument("JOB", &flags->job, "Job id or name (default: all jobs)");
  options.Choose(&flags->filter);
  options.Flag("-f,--follow", &flags->follow, "Keep printing new events");
  options.Number("--tail", &flags->tail, {.least = 0}, "Only the last N events (default: 0, all)");
  options.Text("--since", "DURATION|TIME", &flags->since,
               "Only later events: of the last 90s, 12h or 30d, or since a time such as "
               "2026-11-20T13:00:00");
}

}  // namespace nsa::client
