// nsactl metrics: a job's step records, as the workers wrote them.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "client/cli.h"
#include "client/connect/follow.h"
#include "client/show/document.h"
#include "client/show/metrics_view.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr int kDefaultTail = 20;

struct MetricsFlags {
  std::string job;
  int rank = 0;
  int tail = -1;  // not given
  bool follow = false;
  bool layers = false;
};

// Prints records one at a time.
class RecordPrinter {
 public:
  RecordPrinter(Session* session, bool layers) : session_(*session), layers_(layers) {}

  void Print(const v1::WatchRecordsResponse& record) {
    if (session_.structured()) {
      session_.PrintStreamed(record);
      return;
    }
    if (!record.record().has_step()) {
      session_.out() << "# " << RecordLine(record) << "\n" << std::flush;
      return;
    }
    Table table = StepTable(session_.wide());
    AddStepRow(record, session_.wide(), &table);
    // With --layers each step has its own table, header included.
    session_.out() << table.Format(session_.colours(), first_ || layers_);
    if (layers_) PrintLayers(record.record().step());
    session_.out() << std::flush;
    first_ = false;
  }

 private:
  void PrintLayers(const v1::StepRecord& step) {
    Table table = LayerTable();
    AddLayerRows(step, &table);
    session_.PrintTable(table);
    session_.out() << "\n";
  }

  Session& session_;
  const bool layers_;
  bool first_ = true;
};

// Room for records of other kinds between and after the requested steps.
constexpr int kOthers = 32;
constexpr int64_t kMostAsked = std::numeric_limits<int32_t>::max();

// The last `tail` steps and the other records between and after them; all records with 0.
absl::StatusOr<std::vector<v1::WatchRecordsResponse>> Backlog(Client* client,
                                                              v1::WatchRecordsRequest request,
                                                              int tail) {
  request.set_follow(false);
  std::vector<v1::WatchRecordsResponse> records;
  // The coordinator counts records of every kind; --tail counts steps. Between these may be many
  // samples and validations: then more are asked for.
  int64_t asked = tail > 0 ? std::min(3 * int64_t{tail} + kOthers, kMostAsked) : 0;
  int64_t steps_read = 0;
  do {
    records.clear();
    steps_read = 0;
    request.set_tail(static_cast<int32_t>(asked));
    NSA_RETURN_IF_ERROR(client->Stream<v1::WatchRecordsResponse>(
        request, [&](const v1::WatchRecordsResponse& record) {
          steps_read += record.record().has_step() ? 1 : 0;
          records.push_back(record);
          return true;
        }));
    // The whole run, or the most that can be asked for.
    if (std::ssize(records) < asked || asked == kMostAsked) break;
    asked = std::min(4 * asked, kMostAsked);
  } while (steps_read < tail);
  if (tail == 0) return records;
  size_t first = records.size();
  for (int steps = 0; first > 0 && steps < tail; --first) {
    if (records[first - 1].record().has_step()) ++steps;
  }
  records.erase(records.begin(), records.begin() + static_cast<int64_t>(first));
  return records;
}

void PrintBacklog(Session& session, const std::vector<v1::WatchRecordsResponse>& records,
                  bool follow, RecordPrinter* printer) {
  if (!session.structured() || follow) {
    for (const v1::WatchRecordsResponse& record : records) printer->Print(record);
    return;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const v1::WatchRecordsResponse& record : records) list.push_back(ToJson(record));
  session.PrintDocument({{"records", list}});
}

absl::StatusOr<ExitCode> Metrics(Session& session, const MetricsFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.job));
  v1::WatchRecordsRequest request;
  request.set_job(job.id());
  request.set_rank(flags.rank);
  const int tail = flags.tail >= 0 ? flags.tail : session.structured() ? 0 : kDefaultTail;
  NSA_ASSIGN_OR_RETURN(const auto records, Backlog(client, request, tail));
  RecordPrinter printer(&session, flags.layers);
  PrintBacklog(session, records, flags.follow, &printer);
  if (records.empty() && !session.structured()) session.Note("no records yet");
  if (!flags.follow) return ExitCode::kOk;
  if (!records.empty()) request.set_after_position(records.back().position());
  request.set_follow(true);
  NSA_RETURN_IF_ERROR(Follow(session, job.id(), [&] {
    return client->Stream<v1::WatchRecordsResponse>(request,
                                                    [&](const v1::WatchRecordsResponse& record) {
                                                      printer.Print(record);
                                                      request.set_after_position(record.position());
                                                      return static_cast<bool>(session.out());
                                                    });
  }));
  return ExitCode::kOk;
}

}  // namespace

void AddMetrics(Cli* cli) {
  const auto flags = std::make_shared<MetricsFlags>();
  Options options = cli->Add(
      {.name = "metrics",
       .what = "Show a job's step records: loss, times, memory; gates and selection with --layers",
       .group = "Records",
       .more = "Lines that begin with # are validations, checkpoints, events, starts and ends. -o "
               "json prints all records\nas one document; with -f one document per line. For "
               "alerting use the coordinator's /metrics.",
       .examples = "nsactl metrics demo\n"
                   "nsactl metrics demo -f -o wide\n"
                   "nsactl metrics demo --tail 1 --layers\n"
                   "nsactl metrics demo -o json | jq -r '.records[].record.step.loss'",
       .run = [flags](Session& session) { return Metrics(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Flag("-f,--follow", &flags->follow, "Keep printing until the job has ended");
  options.Rank(&flags->rank, "Only this rank (default: 0)");
  options.Number("--tail", &flags->tail, {.least = 0},
                 "Only the last N steps (default: 20, all with json and yaml; 0: all)");
  options.Flag("--layers", &flags->layers, "Also print a table of layers for each step");
}

}  // namespace nsa::client
