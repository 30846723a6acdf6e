// nsactl sweep: the jobs of a sweep, best first.
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/connect/collect_jobs.h"
#include "client/show/sweep_view.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct ShowSweepFlags {
  std::string name;
  std::string owner;  // empty: any
};

// Sweeps of different owners may have the same name; their jobs must not be ranked together.
absl::Status CheckOneOwner(const std::vector<v1::Job>& jobs, const std::string& name) {
  std::set<std::string> owners;
  for (const v1::Job& job : jobs) owners.insert(job.owner());
  if (owners.size() < 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sweep: '", name, "' is the name of ",
                                                 owners.size(), " sweeps, of ",
                                                 absl::StrJoin(owners, ", "), "; add --owner"));
}

absl::StatusOr<ExitCode> ShowSweep(Session& session, const ShowSweepFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, CollectSweep(client, flags.name, flags.owner));
  if (jobs.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "sweep: no job ", flags.owner.empty() ? "" : absl::StrCat("of ", flags.owner, " "),
        "belongs to a sweep '", flags.name, "'; `nsactl list` shows all jobs"));
  }
  NSA_RETURN_IF_ERROR(CheckOneOwner(jobs, flags.name));
  SortSweep(&jobs);
  if (session.structured()) {
    v1::ListJobsResponse sorted;
    for (v1::Job& job : jobs) sorted.add_jobs()->Swap(&job);
    session.PrintDocument(sorted);
  } else if (session.flags().format == Format::kName) {
    for (const v1::Job& job : jobs) session.out() << job.id() << "\n";
  } else {
    session.PrintTable(SweepTable(jobs));
    session.Note(SweepSummary(jobs));
  }
  return ExitCode::kOk;
}

}  // namespace

void AddSweep(Cli* cli) {
  const auto flags = std::make_shared<ShowSweepFlags>();
  Options options = cli->Add(
      {.name = "sweep",
       .what = "Show the jobs of a sweep, best first",
       .group = "Records",
       .more =
           "A sweep is made by `nsactl submit FILE --sweep FIELD=VALUES`. The best job is the one "
           "with the lowest validation\nloss; in a sweep that is halved, jobs that came further "
           "stand before those that were stopped earlier.",
       .examples = "nsactl sweep lr\n"
                   "nsactl plot $(nsactl sweep lr -o name | head -4)\n"
                   "nsactl compare $(nsactl sweep lr -o name | head -2)",
       .run = [flags](Session& session) { return ShowSweep(session, *flags); }});
  options.Argument("NAME", &flags->name, "Name of the sweep");
  options.Text("--owner", "NAME", &flags->owner,
               "Whose sweep, where several people have one of this name");
}

}  // namespace nsa::client
