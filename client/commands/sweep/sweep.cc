// nsactl sweep: the jobs of a sweep, best first.
#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/connect/collect_jobs.h"
#include "client/show/sweep_view.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

absl::StatusOr<ExitCode> ShowSweep(Session& session, const std::string& name) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, CollectSweep(client, name));
  if (jobs.empty()) {
    return absl::NotFoundError(absl::StrCat("sweep: no job belongs to a sweep '", name,
                                            "'; `nsactl list` shows all jobs"));
  }
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
  const auto name = std::make_shared<std::string>();
  Options options = cli->Add(
      {.name = "sweep",
       .what = "Show the jobs of a sweep, best first",
       .group = "Records",
       .more =
           "A sweep is made by 'nsactl submit FILE --sweep FIELD=VALUES'. The best job is the one "
           "with the lowest validation\nloss; in a sweep that is halved, jobs that came further "
           "stand before those that were stopped earlier.",
       .examples = "nsactl sweep lr\n"
                   "nsactl plot $(nsactl sweep lr -o name | head -4)\n"
                   "nsactl compare $(nsactl sweep lr -o name | head -2)",
       .run = [name](Session& session) { return ShowSweep(session, *name); }});
  options.Argument("NAME", name.get(), "Name of the sweep");
}

}  // namespace nsa::client
