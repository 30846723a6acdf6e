#include "client/show/job_text.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/show/human.h"
#include "common/base/clean_text.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "common/estimate/fewer_ranks.h"
#include "common/estimate/health.h"
#include "common/estimate/passes.h"
#include "common/estimate/schedule.h"
#include "common/job/data/conversations.h"
#include "common/job/data/data_files.h"

namespace nsa::client {
namespace {

// The first of a source's files or patterns, and how many more there are.
std::string FilesText(const google::protobuf::RepeatedPtrField<std::string>& paths) {
  if (paths.empty()) return "-";
  const int more = paths.size() - 1;
  return more == 0 ? paths[0] : absl::StrCat(paths[0], " and ", more, " more");
}

// What `resume` of a job that has ended early does.
const char* ResumeText(const v1::Job& job) {
  return job.progress().checkpoint_unix_nanos() != 0 ? "continue from the newest good checkpoint"
                                                     : "start it again; it has no checkpoint";
}

}  // namespace

std::string StateName(v1::Job::State state) {
  const std::string name = v1::Job::State_Name(state);
  if (name.empty()) return absl::StrCat("unknown(", static_cast<int>(state), ")");
  return std::string(absl::StripPrefix(name, "STATE_"));
}

Colour StateColour(v1::Job::State state) {
  switch (state) {
    case v1::Job::STATE_RUNNING:
      return Colour::kGood;
    case v1::Job::STATE_SUCCEEDED:
      return Colour::kGood;
    case v1::Job::STATE_FAILED:
      return Colour::kBad;
    case v1::Job::STATE_RESTARTING:
      return Colour::kWarning;
    case v1::Job::STATE_STOPPING:
      return Colour::kWarning;
    case v1::Job::STATE_STOPPED:
      return Colour::kDim;
    default:
      return Colour::kBusy;
  }
}

Colour StateColour(const v1::Job& job) {
  const bool muted = std::ranges::any_of(job.problems(), &v1::Problem::muted);
  if (muted && WorstProblem(job) == nullptr) return Colour::kDim;
  const bool well =
      job.state() == v1::Job::STATE_RUNNING || job.state() == v1::Job::STATE_SUCCEEDED;
  if (well && job.health().level() == v1::JobHealth::LEVEL_BAD) return Colour::kBad;
  if (well && (job.health().level() == v1::JobHealth::LEVEL_WARNING ||
               ReasonFromWord(job.reason()) == Reason::kDiverged)) {
    return Colour::kWarning;
  }
  return StateColour(job.state());
}

bool HasEnded(v1::Job::State state) {
  return state == v1::Job::STATE_SUCCEEDED || state == v1::Job::STATE_FAILED ||
         state == v1::Job::STATE_STOPPED;
}

bool HasEnded(const v1::Job& job) {
  if (v1::Job::State_IsValid(job.state())) return HasEnded(job.state());
  return job.end_unix_nanos() != 0;
}

std::string StepText(const v1::JobProgress& progress) {
  if (progress.total_steps() == 0) return "-";
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

double ShareDone(const v1::JobProgress& progress) {
  if (progress.total_steps() <= 0) return 0;
  return std::clamp(static_cast<double>(progress.step()) / progress.total_steps(), 0.0, 1.0);
}

std::string StopText(const v1::StopRequest& stop) {
  switch (stop.mode()) {
    case v1::STOP_MODE_AT_STEP:
      return absl::StrCat("stopping after step ", stop.at_step());
    case v1::STOP_MODE_GRACEFUL:
      return "stopping after the step in progress";
    case v1::STOP_MODE_NOW:
      return "stopping now";
    default:
      return "";
  }
}

std::string NextStartText(const v1::Job& job, absl::Time now) {
  if (job.next_start_unix_nanos() == 0) return "";
  const double seconds =
      absl::ToDoubleSeconds(absl::FromUnixNanos(job.next_start_unix_nanos()) - now);
  return seconds < 1 ? "due" : absl::StrCat("in ", HumanDuration(seconds));
}

std::string ReasonText(const v1::Job& job) {
  if (job.reason().empty() || job.message().empty()) return job.reason() + job.message();
  return absl::StrCat(job.reason(), ": ", job.message());
}

bool HasFewerRanks(const v1::Job& job) { return nsa::HasFewerRanks(job.spec(), job.ranks_size()); }

std::string RanksText(const v1::Job& job) {
  return RankCount(job.spec(), HasFewerRanks(job) ? job.ranks_size() : RanksOf(job.spec()));
}

std::string TelemetryText(const v1::Job& job) {
  const v1::RankStatus* first = nullptr;
  int ranks = 0;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (rank.telemetry_error().empty()) continue;
    if (ranks++ == 0) first = &rank;
  }
  if (first == nullptr) return "";
  return absl::StrCat("rank ", first->rank(),
                      ranks > 1 ? absl::StrCat(" and ", ranks - 1, " more") : "", ": ",
                      first->telemetry_error());
}

std::string GatesText(const v1::JobProgress& progress) {
  const v1::GateSummary& gates = progress.gates();
  if (gates.branch_share_size() != 3) return "";
  return absl::StrFormat("cmp %.2f sel %.2f win %.2f, lowest entropy %.2f in layer %d",
                         gates.branch_share(0), gates.branch_share(1), gates.branch_share(2),
                         gates.lowest_entropy(), gates.lowest_entropy_layer());
}

std::string ResourcesText(const v1::JobProgress& progress) {
  if (progress.memory_allocated_bytes() == 0) return "";
  std::vector<std::string> fallbacks;
  for (const auto& [name, count] : progress.fallbacks()) {
    if (count > 0) fallbacks.push_back(absl::StrCat(name, " ", count));
  }
  std::sort(fallbacks.begin(), fallbacks.end());
  return absl::StrCat(
      "memory ", HumanBytes(progress.memory_allocated_bytes()),
      fallbacks.empty() ? ", no fallbacks" : ", fallbacks: " + absl::StrJoin(fallbacks, ", "));
}

Colour HealthColour(const v1::JobHealth& health) {
  switch (health.level()) {
    case v1::JobHealth::LEVEL_HEALTHY:
      return health.problems().empty() ? Colour::kGood : Colour::kDim;  // a note
    case v1::JobHealth::LEVEL_BAD:
      return Colour::kBad;
    default:
      return Colour::kWarning;
  }
}

Colour ProblemColour(const v1::Problem& problem) {
  if (problem.muted() || problem.level() <= v1::JobHealth::LEVEL_HEALTHY) return Colour::kDim;
  return problem.level() == v1::JobHealth::LEVEL_BAD ? Colour::kBad : Colour::kWarning;
}

std::string ProblemText(const v1::Problem& problem) {
  std::string since;
  if (problem.since_step() > 0) {
    since = absl::StrCat(" since step ", WithCommas(problem.since_step()));
  } else if (problem.since_unix_nanos() > 0) {
    since = absl::StrCat(" at ", Timestamp(problem.since_unix_nanos()));
  }
  return absl::StrCat(problem.cause(), since, " (", problem.word(), ")",
                      problem.evidence().empty() ? "" : ": ", problem.evidence(),
                      problem.muted() ? "; muted" : "");
}

std::string RemediesText(const v1::Problem& problem) {
  std::string text;
  for (const v1::Remedy& remedy : problem.remedies()) {
    absl::StrAppendFormat(&text, "  %-45s # %s\n", remedy.command(), remedy.text());
  }
  return text;
}

std::string CorpusText(const v1::CorpusSummary& corpus) {
  if (corpus.documents() == 0) return "";
  const auto part = [](int64_t documents, const std::string& dropped, int64_t tokens,
                       int64_t rows) {
    return absl::StrCat(WithCommas(documents), documents == 1 ? " document" : " documents", dropped,
                        ", ", WithCommas(tokens), " tokens, ", WithCommas(rows),
                        rows == 1 ? " row" : " rows");
  };
  const int64_t copies = corpus.dropped_documents();
  const std::string dropped =
      copies == 0 ? ""
                  : absl::StrCat(" (", WithCommas(copies), copies == 1 ? " copy" : " copies",
                                 " of validation documents dropped)");
  std::string text =
      part(corpus.documents(), dropped, corpus.tokens(), corpus.rows()) + " an epoch";
  if (corpus.val_documents() > 0) {
    absl::StrAppend(&text, "; ",
                    part(corpus.val_documents(), "", corpus.val_tokens(), corpus.val_rows()),
                    " for validation");
  }
  if (corpus.null_rows() > 0) {
    absl::StrAppend(&text, "; ", WithCommas(corpus.null_rows()),
                    corpus.null_rows() == 1 ? " row" : " rows", " without a text (null) skipped");
  }
  if (corpus.empty_files() > 0) {
    absl::StrAppend(&text, "; ", WithCommas(corpus.empty_files()),
                    corpus.empty_files() == 1 ? " empty file" : " empty files", " passed");
  }
  if (corpus.has_packing()) absl::StrAppend(&text, "; ", PackingText(corpus));
  for (const v1::DataWarning& warning : corpus.warnings()) {
    absl::StrAppend(&text, "; ", CleanLine(WarningText(warning)));
  }
  return text;
}

std::vector<std::vector<std::string>> SourceRows(const v1::Job& job) {
  std::map<std::string, v1::SourceProgress> known;
  int64_t all = 0;
  for (const v1::SourceProgress& source : job.progress().sources()) {
    known[source.name()] = source;
    all += source.rows();
  }
  std::vector<std::vector<std::string>> rows;
  for (const v1::MixSource& mix : job.spec().data().mix()) {
    const v1::SourceProgress& source = known[mix.name()];
    const double share = 100.0 * static_cast<double>(source.rows()) / std::max<double>(all, 1);
    rows.push_back({mix.name(), Number(mix.weight()),
                    all > 0 ? absl::StrFormat("%.1f %%", share) : "-",
                    all > 0 ? absl::StrCat(source.epoch()) : "-",
                    source.has_loss() ? HumanLoss(source.loss()) : "-", FilesText(mix.path())});
  }
  return rows;
}

std::vector<std::vector<std::string>> ValSetRows(const v1::Job& job) {
  std::map<std::string, v1::NamedLoss> known;
  for (const v1::NamedLoss& set : job.progress().val_sets()) known[set.name()] = set;
  const auto& sets = job.spec().data().val();
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, files] : std::map<std::string, std::string>(sets.begin(), sets.end())) {
    const auto set = known.find(name);
    const bool measured = set != known.end();
    rows.push_back({name, measured ? HumanLoss(set->second.loss()) : "-",
                    measured ? WithCommas(set->second.tokens()) : "-", files});
  }
  return rows;
}

std::string Title(const v1::Job& job) { return absl::StrCat(job.name(), " (", job.id(), ")"); }

std::string NextCommands(const v1::Job& job) {
  const auto line = [&job](const char* command, const char* what) {
    return absl::StrFormat("  %-45s # %s\n", absl::StrCat("nsactl ", command, " ", job.id()), what);
  };
  switch (job.state()) {
    case v1::Job::STATE_SUCCEEDED:
      return line("describe", "how it went") + line("plot", "its losses") +
             line("report -o report.html", "everything about it in one file") +
             line("checkpoint list", "its checkpoints") +
             absl::StrFormat("  %-45s # %s\n",
                             absl::StrCat("nsactl resume ", job.id(), " ",
                                          FlagsToTrainFurther(job.spec().train())),
                             "train it further");
    case v1::Job::STATE_FAILED:
      return line("events", "what happened") + line("logs --tail 50", "the workers' last output") +
             // Its message has the command that changes the learning rate too.
             (job.reason() == Word(Reason::kDiverged) ? line("plot", "its losses")
                                                      : line("resume", ResumeText(job)));
    case v1::Job::STATE_STOPPED:
      return line("resume", ResumeText(job)) + (job.progress().checkpoint_unix_nanos() != 0
                                                    ? line("checkpoint list", "its checkpoints")
                                                    : "");
    case v1::Job::STATE_STOPPING:
      return line("watch", "progress until it ends") +
             line("stop --now", "at once, without a checkpoint");
    default:
      return line("watch", "progress until it ends") + line("logs -f", "the workers' output") +
             line("stop", "finish the step, checkpoint, end");
  }
}

ExitCode EndCode(const v1::Job& job) {
  const bool well =
      job.state() == v1::Job::STATE_SUCCEEDED || job.state() == v1::Job::STATE_STOPPED;
  return well ? ExitCode::kOk : ExitCode::kFailed;
}

}  // namespace nsa::client
