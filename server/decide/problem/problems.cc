#include "server/decide/problem/problems.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/clean_text.h"
#include "common/base/reason.h"
#include "server/decide/alert.h"
#include "server/decide/lifecycle.h"
#include "server/decide/problem/templates.h"

namespace nsa::server {
namespace {

using Level = v1::JobHealth::Level;

constexpr size_t kEvidenceBytes = 300;
constexpr char kFailed[] = "It failed";

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// What preflight said of one of these settings when the job was submitted.
std::string Foretold(const v1::Job& job, std::string_view keys) {
  const std::vector<std::string> all = absl::StrSplit(std::string(keys), ' ', absl::SkipEmpty());
  for (const v1::Finding& finding : job.warnings()) {
    if (std::ranges::count(all, finding.field()) == 0) continue;
    return absl::StrCat("preflight warned: ", finding.field(), ": ", FirstLine(finding.problem()));
  }
  return "";
}

class Writer {
 public:
  Writer(int64_t state_unix_nanos, v1::Job* job) : since_(state_unix_nanos), job_(*job) {}

  // `text` has the figure and its limit, or the message of a state. A state began when the job
  // entered it, and then `since_step` is 0.
  void Add(std::string word, Level level, const std::string& text, int64_t since_step,
           bool of_state) {
    const ProblemTemplate* const row = TemplateOf(word);
    v1::Problem& problem = *job_.add_problems();
    problem.set_level(level);
    problem.set_cause(row == nullptr ? kFailed : std::string(row->cause));
    std::vector<std::string> evidence = {FirstLine(text)};
    const std::string_view keys = row == nullptr ? "" : row->keys;
    if (const auto settings = SettingsOf(job_.spec(), keys); !settings.empty()) {
      evidence.push_back(absl::StrJoin(settings, ", "));
    }
    evidence.push_back(Foretold(job_, keys));
    std::erase(evidence, "");
    problem.set_evidence(CutText(CleanLine(absl::StrJoin(evidence, "; ")), kEvidenceBytes));
    problem.set_since_step(since_step);
    if (of_state) problem.set_since_unix_nanos(since_);
    problem.set_muted(std::ranges::any_of(
        job_.mutes(), [&](const v1::Mute& mute) { return mute.problem() == word; }));
    problem.set_word(std::move(word));
    AddRemedies(row, &problem);
  }

 private:
  void AddRemedies(const ProblemTemplate* row, v1::Problem* problem) const {
    const bool ended = IsTerminal(job_.state());
    std::array<Help, 3> helps = {Help::kLog, ended ? Help::kResume : Help::kEvents};
    if (row != nullptr) helps = ended ? row->after_end : row->before_end;
    for (const Help help : helps) {
      auto remedy = RemedyFor(help, job_, problem->since_step());
      if (remedy.has_value()) *problem->add_remedies() = *std::move(remedy);
    }
    if (problem->muted() || problem->level() <= v1::JobHealth::LEVEL_HEALTHY) return;
    v1::Remedy& mute = *problem->add_remedies();
    mute.set_action(v1::Remedy::ACTION_MUTE);
    mute.set_text(ended ? "Mark as seen" : "Mute until it ends");
    mute.set_command(absl::StrCat("nsactl mute ", job_.id(), " ", problem->word()));
    mute.set_rank(-1);
  }

  const int64_t since_;
  v1::Job& job_;
};

// What is wrong with a rank that should train: a word and a text, empty if nothing is.
std::pair<std::string, std::string> Complaint(const v1::RankStatus& rank) {
  const std::string who = absl::StrCat("rank ", rank.rank(), ": ");
  const std::string where = rank.phase().empty() ? "" : absl::StrCat(" in ", rank.phase());
  if (rank.state() == "UNKNOWN") {
    const std::string note = rank.note().empty() ? "its machine does not report" : rank.note();
    return {Word(Reason::kNodeGone), absl::StrCat(who, note, where)};
  }
  if (!rank.note().empty()) {
    return {Word(Reason::kHangSuspected), absl::StrCat(who, rank.note(), where)};
  }
  if (!rank.telemetry_error().empty()) {
    return {Word(Reason::kTelemetryFailed), absl::StrCat(who, rank.telemetry_error())};
  }
  return {};
}

// Uploads that fail, or are slower than the checkpoints come.
void AddOfUploads(const v1::Job& job, Writer* writer) {
  const v1::JobProgress& progress = job.progress();
  const v1::TrainSpec& train = job.spec().train();
  if (!progress.upload_error().empty()) {
    writer->Add(Word(Reason::kCheckpointUploadFailed), v1::JobHealth::LEVEL_WARNING,
                absl::StrCat("the newest upload failed: ", progress.upload_error()), 0, false);
    return;
  }
  constexpr int64_t kLate = 2;  // checkpoints
  const int64_t behind = progress.checkpoint_step() - progress.uploaded_step();
  if (train.checkpoint_url().empty() || train.save_every() <= 0 ||
      behind <= kLate * train.save_every()) {
    return;
  }
  writer->Add(Word(Reason::kCheckpointUploadLags), v1::JobHealth::LEVEL_WARNING,
              absl::StrFormat("the newest checkpoint is of step %d, the newest that is uploaded of "
                              "step %d",
                              progress.checkpoint_step(), progress.uploaded_step()),
              0, false);
}

// What is wrong with the processes of a job that trains; of each kind the first rank is named.
void AddOfRanks(const v1::Job& job, Writer* writer) {
  std::vector<std::string> known;
  for (const v1::RankStatus& rank : job.ranks()) {
    auto [word, text] = Complaint(rank);
    if (word.empty() || std::ranges::count(known, word) > 0) continue;
    known.push_back(word);
    writer->Add(std::move(word), v1::JobHealth::LEVEL_WARNING, text, 0, false);
  }
  const v1::JobProgress& progress = job.progress();
  const bool finite = progress.step() == 0 || std::isfinite(progress.loss());
  if (!finite && std::ranges::none_of(job.problems(), [](const v1::Problem& problem) {
        return problem.word() == "NONFINITE";
      })) {
    writer->Add("NONFINITE", v1::JobHealth::LEVEL_BAD, "the loss of the last step is not finite", 0,
                false);
  }
  if (!progress.checkpoint_error().empty()) {
    writer->Add(Word(Reason::kCheckpointFailed), v1::JobHealth::LEVEL_WARNING,
                absl::StrCat("the newest checkpoint failed: ", progress.checkpoint_error()), 0,
                false);
  }
  AddOfUploads(job, writer);
}

void AddOfState(const v1::Job& job, bool diverged, Writer* writer) {
  const auto reason = ReasonFromWord(job.reason());
  const std::string& text = job.message().empty() ? job.reason() : job.message();
  switch (job.state()) {
    case v1::Job::STATE_FAILED:
      if (!diverged || reason != Reason::kDiverged) {
        writer->Add(job.reason(), v1::JobHealth::LEVEL_BAD, text, 0, true);
      }
      return;
    case v1::Job::STATE_RESTARTING:
      if (reason == Reason::kMoving || reason == Reason::kGivingWay) return;
      writer->Add(job.reason(), v1::JobHealth::LEVEL_WARNING, text, 0, true);
      return;
    case v1::Job::STATE_SUCCEEDED:
      if (reason == Reason::kDiverged && !diverged) {
        writer->Add(job.reason(), v1::JobHealth::LEVEL_WARNING, text, 0, true);
      }
      return;
    case v1::Job::STATE_QUEUED:
      // It waits; that needs nobody.
      if (reason == Reason::kDependencyNeverSatisfied) {
        writer->Add(job.reason(), v1::JobHealth::LEVEL_WARNING, text, 0, true);
      } else if (reason == Reason::kUnplaceable || reason == Reason::kCordoned ||
                 (reason.has_value() && InfoOf(*reason).use == ReasonUse::kRefused)) {
        writer->Add(job.reason(), v1::JobHealth::LEVEL_HEALTHY, text, 0, true);
      }
      return;
    default:
      return;
  }
}

// An alert that is raised at the end of a job stays a note.
void AddAlerts(const v1::Job& job, Writer* writer) {
  const bool ended = IsTerminal(job.state());
  for (int i = 0; i < job.progress().alerts_size(); ++i) {
    const v1::AlertProgress& alert = job.progress().alerts(i);
    if (!alert.raised()) continue;
    writer->Add(AlertWord(i), ended ? v1::JobHealth::LEVEL_HEALTHY : v1::JobHealth::LEVEL_WARNING,
                AlertText(alert), alert.since_step(), false);
  }
}

}  // namespace

const std::string& WordOf(const v1::JobEvent& event) {
  return event.problem().empty() ? event.reason() : event.problem();
}

bool Holds(const v1::Mute& mute, const v1::Job& job) {
  return mute.end_unix_nanos() == job.end_unix_nanos();
}

bool IsMuted(const v1::Job& job, const std::string& word) {
  for (const v1::Mute& mute : job.mutes()) {
    if (!Holds(mute, job)) continue;
    const std::vector<std::string> words = SameProblem(mute.problem());
    if (std::ranges::count(words, word) > 0) return true;
  }
  return false;
}

void AddProblems(const std::vector<HealthFinding>& found, int64_t state_unix_nanos, v1::Job* job) {
  auto& mutes = *job->mutable_mutes();
  mutes.erase(std::remove_if(mutes.begin(), mutes.end(),
                             [&](const v1::Mute& mute) { return !Holds(mute, *job); }),
              mutes.end());
  job->clear_problems();
  Writer writer(state_unix_nanos, job);
  bool diverged = false;
  // A run that has diverged is as bad as one that failed, unless it did all its steps.
  const bool failed = job->state() == v1::Job::STATE_FAILED;
  const bool runs = job->state() == v1::Job::STATE_RUNNING;
  for (const HealthFinding& finding : found) {
    const bool done = job->state() == v1::Job::STATE_SUCCEEDED;
    if (!runs && !done && !(failed && job->reason() == finding.rule->word)) continue;
    diverged = diverged || finding.rule->rule == HealthRule::kDiverged;
    const Level level =
        done ? std::min(finding.rule->level, v1::JobHealth::LEVEL_WARNING) : finding.rule->level;
    writer.Add(std::string(finding.rule->word), level, finding.text, finding.since_step, !runs);
  }
  if (runs) AddOfRanks(*job, &writer);
  AddAlerts(*job, &writer);
  AddOfState(*job, diverged, &writer);
  std::stable_sort(
      job->mutable_problems()->begin(), job->mutable_problems()->end(),
      [](const v1::Problem& a, const v1::Problem& b) { return a.level() > b.level(); });
}

std::optional<v1::Problem> ProblemOf(const v1::JobEvent& event, const v1::Job& job) {
  const ProblemTemplate* const row = TemplateOf(event.reason());
  if (row == nullptr || event.severity() < v1::SEVERITY_WARNING) return std::nullopt;
  v1::Job then = job;  // the job may have gone on since
  then.set_state(event.state());
  then.set_message(event.rank() < 0 ? event.text() : absl::StrCat("rank ", event.rank(), ": "));
  then.clear_problems();
  then.clear_mutes();
  Writer writer(event.unix_nanos(), &then);
  writer.Add(WordOf(event), v1::JobHealth::LEVEL_HEALTHY, "", 0, true);
  return then.problems(0);
}

}  // namespace nsa::server
