// nsactl profile: what the ranks of a running job do in their next steps, as a trace.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/show/document.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "client/show/table.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/run/output_file.h"
#include "common/trace/merge_traces.h"
#include "common/trace/rank_traces.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr int64_t kMostSteps = 100;
constexpr size_t kTopRows = 10;
constexpr int kNameColumns = 60;

struct ProfileFlags {
  std::string job;
  std::string file;
  int steps = 3;
  bool force = false;
};

absl::Status Exists(const std::string& path) {
  return absl::AlreadyExistsError(
      absl::StrCat(path, ": exists; name another file with -o, or overwrite it with --force"));
}

// One row of the table.
struct KindRow {
  std::string kind;
  std::string name;
  TraceTotals::Time time;
};

std::vector<KindRow> RowsOf(const TraceTotals& totals, const std::set<std::string>& kinds) {
  std::vector<KindRow> rows;
  for (const auto& [key, time] : totals.times) {
    if (kinds.contains(key.first)) rows.push_back({key.first, key.second, time});
  }
  std::ranges::stable_sort(rows, [](const KindRow& a, const KindRow& b) {
    return a.time.microseconds > b.time.microseconds;
  });
  if (rows.size() > kTopRows) rows.resize(kTopRows);
  return rows;
}

// The phases, then what takes most of the time: on the GPU if that is in the trace, else the
// kernels on the host.
std::vector<KindRow> TopRows(const TraceTotals& totals) {
  std::vector<KindRow> rows = RowsOf(totals, {"phase"});
  std::vector<KindRow> work =
      RowsOf(totals, {"gpu_kernel", "gpu_collective", "gpu_copy", "gpu_set"});
  if (work.empty()) work = RowsOf(totals, {"kernel", "collective"});
  rows.insert(rows.end(), work.begin(), work.end());
  return rows;
}

double ShareOf(const TraceTotals& totals, const KindRow& row) {
  return totals.step_microseconds > 0 ? row.time.microseconds / totals.step_microseconds : 0;
}

Table TableOf(const TraceTotals& totals) {
  Table table({{"KIND"}, {"NAME"}, {"CALLS", true}, {"MS/STEP", true}, {"OF STEP", true}});
  const auto steps = static_cast<double>(std::max<int64_t>(totals.steps, 1));
  for (const KindRow& row : TopRows(totals)) {
    table.Add({row.kind, ClipMiddle(row.name, kNameColumns),
               Number(static_cast<double>(row.time.calls) / steps, 4),
               absl::StrFormat("%.3f", row.time.microseconds / steps * 1e-3),
               absl::StrFormat("%.1f %%", 100 * ShareOf(totals, row))});
  }
  return table;
}

nlohmann::ordered_json DocumentOf(const v1::Job& job, const std::string& file, int64_t size,
                                  const RankTraces& traces, const TraceTotals& totals) {
  nlohmann::ordered_json document = {{"job_id", job.id()},
                                     {"job_name", job.name()},
                                     {"file", file},
                                     {"bytes", size},
                                     {"first_step", totals.first_step},
                                     {"last_step", totals.last_step},
                                     {"dropped_events", totals.dropped_events},
                                     {"notes", totals.notes},
                                     {"ranks", nlohmann::ordered_json::array()},
                                     {"top", nlohmann::ordered_json::array()}};
  for (const auto& [rank, trace] : traces.ranks()) {
    document["ranks"].push_back({{"rank", rank}, {"node", trace.node}, {"error", trace.error}});
  }
  const auto steps = static_cast<double>(std::max<int64_t>(totals.steps, 1));
  for (const KindRow& row : TopRows(totals)) {
    document["top"].push_back({{"kind", row.kind},
                               {"name", row.name},
                               {"calls_per_step", static_cast<double>(row.time.calls) / steps},
                               {"seconds_per_step", row.time.microseconds / steps * 1e-6},
                               {"share_of_step", ShareOf(totals, row)}});
  }
  return document;
}

absl::Status Fetch(Session& session, Client* client, const ProfileFlags& flags, const v1::Job& job,
                   RankTraces* traces) {
  v1::ProfileJobRequest request;
  request.set_job(job.id());
  request.set_steps(flags.steps);
  if (job.state() == v1::Job::STATE_RUNNING) {  // the coordinator refuses the others
    session.Note(absl::StrCat("recording ", Count(flags.steps, "step"), " of ", Title(job),
                              "; training goes on"));
  }
  absl::Status taken;
  NSA_RETURN_IF_ERROR(
      client->Stream<v1::ProfileJobResponse>(request, [&](const v1::ProfileJobResponse& part) {
        taken = traces->Take(part);
        return taken.ok();
      }));
  return taken;
}

void ShowTotals(Session& session, const std::string& file, int64_t size, const RankTraces& traces,
                const TraceTotals& totals) {
  const auto ranks = std::ranges::count_if(
      traces.ranks(), [](const auto& entry) { return entry.second.complete(); });
  const std::string steps =
      totals.first_step == totals.last_step
          ? absl::StrCat("step ", totals.first_step)
          : absl::StrCat("steps ", totals.first_step, " to ", totals.last_step);
  session.PrintTable(TableOf(totals));
  session.out() << "\n"
                << steps << " of " << Count(ranks, "rank") << " in " << file << " ("
                << HumanBytes(size) << "); open it at https://ui.perfetto.dev\n";
  for (const std::string& note : totals.notes) session.Note(note);
  if (totals.dropped_events > 0) {
    session.Note(absl::StrCat("events left out: ", totals.dropped_events,
                              " (500,000 a rank are kept); record fewer steps with --steps"));
  }
}

absl::StatusOr<ExitCode> Profile(Session& session, const ProfileFlags& flags) {
  std::error_code error;
  if (!flags.file.empty() && !flags.force && std::filesystem::exists(flags.file, error)) {
    return Exists(flags.file);
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.job, v1::JOB_USE_ACTIVE));
  const char* const folder = std::getenv("TMPDIR");
  RankTraces traces(folder == nullptr || *folder == '\0' ? "/tmp" : folder);
  NSA_RETURN_IF_ERROR(Fetch(session, client, flags, job, &traces));
  const std::vector<std::string> problems = traces.Problems();
  if (problems.size() == traces.ranks().size()) {
    return absl::InternalError(
        absl::StrCat("profile: no rank gave a trace: ", absl::StrJoin(problems, "; ")));
  }
  NSA_ASSIGN_OR_RETURN(const TraceHeads heads, ReadHeads(traces));
  const std::string name = job.name().empty() ? job.id() : job.name();
  const std::string file = flags.file.empty() ? TraceFileName(name, heads.totals) : flags.file;
  if (!flags.force && std::filesystem::exists(file, error)) return Exists(file);
  NSA_ASSIGN_OR_RETURN(OutputFile output, OutputFile::Create(file));
  NSA_ASSIGN_OR_RETURN(
      const TraceTotals totals,
      MergeTraces(
          traces, heads, name, [&output](std::string_view data) { return output.Append(data); },
          /*plain=*/!absl::EndsWith(file, ".gz")));
  NSA_RETURN_IF_ERROR(output.Publish());
  if (session.structured()) {
    session.PrintDocument(DocumentOf(job, file, output.size(), traces, totals));
  } else if (session.flags().format == Format::kName) {
    session.out() << file << "\n";
  } else {
    ShowTotals(session, file, output.size(), traces, totals);
  }
  if (problems.empty()) return ExitCode::kOk;
  return absl::InternalError(absl::StrCat("profile: ", problems.size(), " of ",
                                          Count(traces.ranks().size(), "rank"),
                                          " gave no trace: ", absl::StrJoin(problems, "; ")));
}

}  // namespace

void AddProfile(Cli* cli) {
  const auto flags = std::make_shared<ProfileFlags>();
  Options options = cli->Add(
      {.name = "profile",
       .what = "Record the next steps of a running job as a trace for Perfetto",
       .group = "Jobs",
       .more =
           "All ranks record the same whole steps: phases, layers, kernels, collectives and "
           "memory, on a GPU\neach kernel and copy with its stream. Training goes on and computes "
           "the same bits. The file is\nJOB-steps-A-B.json.gz in the current folder unless -o "
           "names another, which is plain JSON\nwithout the ending .gz; open it at "
           "https://ui.perfetto.dev. The table shows the phases\nand what took most of the time. "
           "Here -o names a file; --output json|yaml chooses the\nformat of what is printed.",
       .examples = "nsactl profile demo\n"
                   "nsactl profile demo --steps 1 -o step.json.gz\n"
                   "nsactl profile demo -o step.json.gz --force --output json",
       .run = [flags](Session& session) { return Profile(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Number("--steps", &flags->steps, {.least = 1, .most = kMostSteps},
                 "Steps to record (default: 3)");
  options.Text("-o,--file", "FILE", &flags->file,
               "Write to this file (default: JOB-steps-A-B.json.gz)");
  options.Flag("--force", &flags->force, "Overwrite the file");
}

}  // namespace nsa::client
