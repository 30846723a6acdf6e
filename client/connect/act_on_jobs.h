// Commands that change jobs: those that are named, or all that match --state, --label and patterns
// of names.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/collect_jobs.h"
#include "client/connect/session.h"
#include "common/job/data/wildcard.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::client {

// The jobs that a command line chooses: Options::ChooseToActOn().
struct JobSelection {
  std::vector<std::string> jobs;  // ids or names, or patterns of names: "lr-*"
  JobFilter filter;
  bool yes = false;  // do not ask

  // Whether `jobs` are patterns: the first is, and then all are (CheckChosen()).
  bool patterns() const { return !jobs.empty() && HasWildcard(jobs.front()); }
  // Whether jobs are looked for, not named.
  bool matches() const { return !filter.empty() || patterns(); }
  // The result is a list even when it has one job.
  bool several() const { return jobs.size() > 1 || matches(); }

  // For a command with one JOB before other words: with --state or --label, JOB is one of those.
  void Place(const std::string& first, std::vector<std::string>* words) {
    if (first.empty()) return;
    if (filter.empty()) {
      jobs = {first};
    } else {
      words->insert(words->begin(), first);
    }
  }
};

// InvalidArgument when no job is chosen, and when some are both named and matched. Patterns match
// together with --state and --label.
absl::Status CheckChosen(const JobSelection& selection);

// The jobs that match the filter and a pattern and can be used so, newest first. Notes how many
// others match.
absl::StatusOr<std::vector<v1::Job>> MatchingJobs(Session& session, const std::string& command,
                                                  const JobSelection& selection, v1::JobUse use);

// Shows the lines and asks `question` on the terminal. OK when the answer is yes, else Cancelled.
// InvalidArgument without a terminal.
absl::Status ConfirmLines(Session& session, const std::string& command,
                          const std::vector<std::string>& lines, const std::string& question);

// Shows the jobs and asks `question` as ConfirmLines() does.
absl::Status Confirm(Session& session, const std::string& command, const std::vector<v1::Job>& jobs,
                     const std::string& question);

// The names or ids of the chosen jobs, after CheckChosen(). With `ask` the jobs that match are
// confirmed, unless with --yes. Empty, with a note, when none matches.
absl::StatusOr<std::vector<std::string>> ChosenJobs(Session& session, const std::string& command,
                                                    const JobSelection& selection, v1::JobUse use,
                                                    bool ask);

struct Action {
  std::string command;
  v1::JobUse use = v1::JOB_USE_UNSPECIFIED;
  // Changes a job and returns it as it is then.
  std::function<absl::StatusOr<v1::Job>(const std::string& job)> act;
  // Prints what was done to it, for -o table and wide.
  std::function<void(const v1::Job& job)> print;
  // More documents follow: with -o json, each is a line.
  bool streamed = false;
};

// Acts on each chosen job, also after an error of one (ForEachJob()), and prints each result.
absl::Status ActOnJobs(Session& session, const JobSelection& selection, const Action& action);

}  // namespace nsa::client
