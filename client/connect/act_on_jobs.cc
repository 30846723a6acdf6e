#include "client/connect/act_on_jobs.h"

#include <fnmatch.h>

#include <algorithm>
#include <istream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect/each_job.h"
#include "client/show/document.h"
#include "client/show/job_text.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

// Whether the coordinator can do it in this state.
bool IsFor(v1::JobUse use, v1::Job::State state) {
  switch (use) {
    case v1::JOB_USE_ACTIVE:
      return !HasEnded(state);
    case v1::JOB_USE_RESUMABLE:
      return state == v1::Job::STATE_FAILED || state == v1::Job::STATE_STOPPED;
    case v1::JOB_USE_ENDED:
      return HasEnded(state);
    default:
      return true;
  }
}

// Whether a job has a name that matches one of the patterns, or there are none.
bool HasName(const v1::Job& job, const std::vector<std::string>& patterns) {
  return patterns.empty() || std::ranges::any_of(patterns, [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), job.name().c_str(), 0) == 0;
         });
}

}  // namespace

absl::Status CheckChosen(const JobSelection& selection) {
  if (selection.jobs.empty() && selection.filter.empty()) {
    return absl::InvalidArgumentError(
        "JOB: none (at least 1); name a job, or choose some with --state or --label");
  }
  if (!selection.matches()) {
    const auto pattern = std::ranges::find_if(selection.jobs, HasWildcard);
    if (pattern == selection.jobs.end()) return absl::OkStatus();
  }
  const auto named = std::ranges::find_if_not(selection.jobs, HasWildcard);
  if (named == selection.jobs.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("JOB: ", *named,
                   " (none with --state, --label or a pattern); name a job or choose some, not "
                   "both"));
}

absl::StatusOr<std::vector<v1::Job>> MatchingJobs(Session& session, const std::string& command,
                                                  const JobSelection& selection, v1::JobUse use) {
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsRequest request, RequestOf(selection.filter));
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsResponse found, CollectJobs(client, request, 0));
  std::vector<v1::Job> jobs;
  int64_t matching = 0;
  for (const v1::Job& job : found.jobs()) {
    if (!HasName(job, selection.jobs)) continue;
    ++matching;
    if (IsFor(use, job.state())) jobs.push_back(job);
  }
  if (const auto left = matching - static_cast<int64_t>(jobs.size()); left > 0) {
    session.Note(absl::StrFormat("%s: %d of %s left out; not possible in their state", command,
                                 left, Count(matching, "matching job")));
  } else if (jobs.empty()) {
    session.Note(absl::StrCat(
        command, ": no jobs ",
        selection.patterns() ? "with such names" : "in these states or with these labels"));
  }
  return jobs;
}

absl::Status ConfirmLines(Session& session, const std::string& command,
                          const std::vector<std::string>& lines, const std::string& question) {
  if (!session.console().can_ask) {
    return absl::InvalidArgumentError(
        absl::StrCat("--yes: not given, and there is no terminal to ask on; add --yes to ", command,
                     " without asking"));
  }
  std::ostream& err = *session.console().err;
  for (const std::string& line : lines) err << "  " << line << "\n";
  err << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(*session.console().in, answer);
  answer = absl::AsciiStrToLower(absl::StripAsciiWhitespace(answer));
  return answer == "y" || answer == "yes" ? absl::OkStatus() : absl::CancelledError();
}

absl::Status Confirm(Session& session, const std::string& command, const std::vector<v1::Job>& jobs,
                     const std::string& question) {
  std::vector<std::string> lines;
  for (const v1::Job& job : jobs) {
    lines.push_back(absl::StrCat(Title(job), "  ", StateTitle(job), " at ",
                                 StepText(job.progress()), ", out_dir ",
                                 job.spec().train().out_dir()));
  }
  return ConfirmLines(session, command, lines, question);
}

absl::StatusOr<std::vector<std::string>> ChosenJobs(Session& session, const std::string& command,
                                                    const JobSelection& selection, v1::JobUse use,
                                                    bool ask) {
  NSA_RETURN_IF_ERROR(CheckChosen(selection));
  if (!selection.matches()) return selection.jobs;
  NSA_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs,
                       MatchingJobs(session, command, selection, use));
  if (ask && !selection.yes && !jobs.empty()) {
    const std::string question = absl::StrCat(command, ": go on with ",
                                              Count(static_cast<int64_t>(jobs.size()), "job"), "?");
    const absl::Status confirmed = Confirm(session, command, jobs, question);
    if (absl::IsCancelled(confirmed)) session.Note("nothing changed");
    NSA_RETURN_IF_ERROR(confirmed);
  }
  std::vector<std::string> ids;
  for (const v1::Job& job : jobs) ids.push_back(job.id());
  return ids;
}

absl::Status ActOnJobs(Session& session, const JobSelection& selection, const Action& action) {
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> jobs,
                       ChosenJobs(session, action.command, selection, action.use, /*ask=*/true));
  const bool list = selection.several() && session.structured();
  nlohmann::ordered_json documents = nlohmann::ordered_json::array();
  const absl::Status status =
      ForEachJob(action.command, jobs, [&](const std::string& name) -> absl::Status {
        NSA_ASSIGN_OR_RETURN(const v1::Job job, action.act(name));
        if (list) {
          documents.push_back(ToJson(job));
        } else if (action.streamed && session.structured()) {
          session.PrintStreamed(job);
        } else if (!session.PrintDocumentOrName(job, job.id())) {
          action.print(job);
        }
        return absl::OkStatus();
      });
  if (list) session.PrintDocument({{"jobs", std::move(documents)}});
  return status;
}

}  // namespace nsa::client
