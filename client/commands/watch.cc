// nsactl watch: shows a job's progress until it ends.
#include "client/commands/watch.h"

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/view/watch_charts.h"
#include "client/connect/job_feed.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "client/show/live_block.h"
#include "client/show/watch_view.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(250);
// Plain lines: progress every 10 s, validations and checkpoints at most every 2 s.
constexpr absl::Duration kPlainEvery = absl::Seconds(10);
constexpr absl::Duration kNewsEvery = absl::Seconds(2);

// Shows the states that a feed delivers: live, as plain lines, or as documents.
class Show {
 public:
  virtual ~Show() = default;
  virtual void Batch(const JobFeed::Batch& batch) = 0;
};

class ShowLive final : public Show {
 public:
  ShowLive(Session* session, Client* client, const v1::Job& job)
      : session_(*session),
        job_(job),
        received_(session->now()),
        charts_(client, job.id()),
        block_(&session->out()) {}

  void Batch(const JobFeed::Batch& batch) override {
    const absl::Time now = session_.now();
    const ViewOptions options = {.columns = session_.console().columns() - 1,
                                 .unicode = session_.console().unicode,
                                 .colours = session_.colours()};
    std::string above;
    for (const v1::Job& job : batch.jobs) {
      if (job.state() != job_.state()) {
        absl::StrAppend(&above, TransitionLine(job, now, StateTitle(job_), options), "\n");
      }
      job_ = job;
      received_ = now;
    }
    std::vector<std::string> lines = LiveView(
        job_,
        {.now = now, .received = received_, .connected = batch.connected, .silence = batch.silence},
        options);
    AddCharts(batch.connected, options, &lines);
    block_.Draw(above, lines);
  }

 private:
  // Below the lines, where the terminal has room for them.
  void AddCharts(bool connected, const ViewOptions& options, std::vector<std::string>* lines) {
    if (connected) charts_.Refresh(session_.clock().Monotonic(), job_.progress());
    const int left = TerminalRows() - static_cast<int>(lines->size()) - 2;
    const auto& charts = charts_.Lines({.columns = options.columns,
                                        .rows = left,
                                        .unicode = options.unicode,
                                        .colours = options.colours});
    if (charts.empty()) return;
    lines->emplace_back();
    lines->insert(lines->end(), charts.begin(), charts.end());
  }

  Session& session_;
  v1::Job job_;
  absl::Time received_;
  WatchCharts charts_;
  LiveBlock block_;
};

class ShowPlain final : public Show {
 public:
  explicit ShowPlain(Session* session) : session_(*session) {}

  void Batch(const JobFeed::Batch& batch) override {
    for (const v1::Job& job : batch.jobs) {
      const absl::Time now = session_.now();
      if (!first_ && !IsDue(job, now)) continue;
      session_.out() << PlainLine(job, now) << "\n" << std::flush;
      first_ = false;
      printed_ = now;
      job_ = job;
    }
    if (batch.connected != connected_) {
      session_.Note(batch.connected
                        ? "nsactl: reconnected"
                        : "nsactl: coordinator not reached; trying again (training goes on)");
      connected_ = batch.connected;
    }
  }

 private:
  bool IsDue(const v1::Job& job, absl::Time now) const {
    if (IsTurn(job_, job)) return true;
    return now - printed_ >= (IsNews(job_, job) ? kNewsEvery : kPlainEvery);
  }

  Session& session_;
  v1::Job job_;  // as printed last
  absl::Time printed_;
  bool first_ = true;
  bool connected_ = true;
};

class ShowDocuments final : public Show {
 public:
  explicit ShowDocuments(Session* session) : session_(*session) {}
  void Batch(const JobFeed::Batch& batch) override {
    for (const v1::Job& job : batch.jobs) session_.PrintStreamed(job);
  }

 private:
  Session& session_;
};

std::unique_ptr<Show> MakeShow(Session* session, Client* client, const v1::Job& job) {
  if (session->structured()) return std::make_unique<ShowDocuments>(session);
  if (session->console().terminal) return std::make_unique<ShowLive>(session, client, job);
  return std::make_unique<ShowPlain>(session);
}

}  // namespace

absl::StatusOr<ExitCode> WatchToEnd(Session& session, const v1::Job& job) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::Job last = job;
  JobFeed::Batch batch;
  {
    JobFeed feed(client, &session.interrupt(), &session.clock(), job.id());
    const std::unique_ptr<Show> show = MakeShow(&session, client, job);
    while (!batch.done) {
      batch = feed.Wait(kRedraw);
      show->Batch(batch);
      if (!batch.jobs.empty()) last = batch.jobs.back();
    }
  }
  if (absl::IsCancelled(batch.status)) {
    session.Note(absl::StrCat("\n", Title(last), " keeps running without this window:\n",
                              NextCommands(last)));
    return ExitCode::kInterrupted;
  }
  NSA_RETURN_IF_ERROR(batch.status);
  if (!session.structured()) {
    session.out() << "\n"
                  << Summary(last,
                             {.unicode = session.console().unicode, .colours = session.colours()});
  }
  return EndCode(last);
}

void AddWatch(Cli* cli) {
  const auto job = std::make_shared<std::string>();
  Options options = cli->Add(
      {.name = "watch",
       .what = "Show a job's progress until it ends",
       .group = "Jobs",
       .more =
           "On a terminal the view is redrawn in place, with charts below it where there is room "
           "(from 46 columns and about\n20 rows; a larger terminal has more of them). Elsewhere "
           "a line is printed at every change of state, at\nvalidations and checkpoints, and "
           "every 10 s. Ctrl-C leaves the job running. Exit code 1 when the job failed.\nWhen "
           "the coordinator goes away, watch waits for it.",
       .examples =
           "nsactl watch demo\nnsactl watch demo | tee watch.log\nnsactl watch demo -o json",
       .run = [job](Session& session) -> absl::StatusOr<ExitCode> {
         NSA_ASSIGN_OR_RETURN(Client * client, session.client());
         NSA_ASSIGN_OR_RETURN(const v1::Job found, client->GetJob(*job));
         return WatchToEnd(session, found);
       }});
  options.Argument("JOB", job.get(), "Job id or name");
}

}  // namespace nsa::client
