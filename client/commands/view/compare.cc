// nsactl compare: what differs between jobs, in their configurations and in their figures.
#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/view/read_history.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr int kValueColumns = 36;
constexpr int kWideColumns = 1000;

struct CompareFlags {
  std::vector<std::string> jobs;
  JobFilter filter;
  bool all = false;
};

absl::StatusOr<ExitCode> Compare(Session& session, const CompareFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                       ChooseJobs(session, client, "compare", flags.jobs, flags.filter));
  NSA_ASSIGN_OR_RETURN(const std::vector<ComparedJob> jobs,
                       ReadCurves(client, "compare", names, 2, {kLoss, kSpeed, kMemory}));
  std::vector<KeyValues> keys = SpecKeys(jobs);
  const size_t count = keys.size();
  if (!flags.all) std::erase_if(keys, [](const KeyValues& key) { return !key.Differs(); });
  if (session.structured()) {
    session.PrintDocument(ComparisonDocument(jobs, keys, session.now()));
    return ExitCode::kOk;
  }
  session.PrintTable(FiguresTable(jobs, session.now()));
  session.out() << "\n";
  if (keys.empty()) {
    session.out() << "The configurations are equal in all " << count << " keys.\n";
    return ExitCode::kOk;
  }
  session.PrintTable(KeysTable(jobs, keys, session.wide() ? kWideColumns : kValueColumns));
  if (!flags.all) {
    session.Note(absl::StrCat(keys.size(), " of ", count, " keys differ; --all shows every key"));
  }
  return ExitCode::kOk;
}

}  // namespace

void AddCompare(Cli* cli) {
  const auto flags = std::make_shared<CompareFlags>();
  Options options = cli->Add(
      {.name = "compare",
       .what = "Show what differs between jobs: final figures, and keys of the configuration",
       .group = "Records",
       .more =
           "MEAN LOSS is of the last 50 steps (LOSS of `list`: of the last one), VAL NAME the "
           "newest "
           "of a set of data.val,\nTOK/S the median of all steps, MEMORY the most of any step, RUN "
           "TIME while ranks ran, without waits; all of\nrank 0. Beyond 2,048 steps, points of the "
           "curve that hold some steps each take the place of steps. The best of\neach is green. "
           "Long values are cut; -o wide shows all of them.",
       .examples = "nsactl compare small large\n"
                   "nsactl compare --label sweep=lr\n"
                   "nsactl compare baseline --label team=vision --state finished\n"
                   "nsactl compare small large --all -o wide\n"
                   "nsactl compare small large -o json | jq '.jobs[] | {name, best_val_loss}'",
       .run = [flags](Session& session) { return Compare(session, *flags); }});
  options.OptionalArguments("JOB", &flags->jobs, "Two to eight job ids or names");
  options.Choose(&flags->filter);
  options.Flag("--all", &flags->all, "Also the keys that are equal");
}

}  // namespace nsa::client
