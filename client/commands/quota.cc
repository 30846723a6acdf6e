// nsactl quota: what the jobs of each owner take, and what they may.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli.h"
#include "client/show/human.h"
#include "common/base/count.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

// "3", or "3/12" with a limit. What is used up stands out.
Table::Cell Of(const std::string& used, bool has, const std::string& most, bool full) {
  if (!has) return used;
  return {absl::StrCat(used, "/", most), full ? Colour::kWarning : Colour::kNone};
}

std::vector<Table::Cell> Row(const v1::OwnerUse& use) {
  const v1::QuotaConfig& quota = use.quota();
  const v1::GpuTimeQuota& time = quota.gpu_time();
  return {use.owner(),
          Of(absl::StrCat(use.jobs()), quota.has_jobs(), absl::StrCat(quota.jobs()),
             use.jobs() >= quota.jobs()),
          Of(absl::StrCat(use.ranks()), quota.has_ranks(), absl::StrCat(quota.ranks()),
             use.ranks() >= quota.ranks()),
          Of(absl::StrFormat("%.1f", use.gpu_seconds() / 3600), quota.has_gpu_time(),
             Number(time.hours()), use.free_unix_nanos() != 0),
          absl::StrCat(Number(use.window_days()), " d"),
          quota.has_highest_priority() ? absl::StrCat(quota.highest_priority()) : "-",
          use.free_unix_nanos() == 0 ? "-" : Timestamp(use.free_unix_nanos())};
}

absl::StatusOr<ExitCode> Quota(Session& session) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto response,
                       client->Call<v1::ListUseResponse>(v1::ListUseRequest()));
  if (session.structured()) {
    session.PrintDocument(response);
    return ExitCode::kOk;
  }
  Table table({{"OWNER"},
               {"JOBS", true},
               {"RANKS", true},
               {"GPU HOURS", true},
               {"IN THE LAST", true},
               {"MAX PRIORITY", true},
               {"GPUS AGAIN FROM"}});
  for (const v1::OwnerUse& use : response.owners()) {
    if (session.flags().format == Format::kName) {
      session.out() << use.owner() << "\n";
    } else {
      table.Add(Row(use));
    }
  }
  if (!table.empty()) session.PrintTable(table);
  if (response.owners().empty()) session.Note("nobody has jobs or has used GPUs lately");
  return ExitCode::kOk;
}

}  // namespace

void AddQuota(Cli* cli) {
  cli->Add({.name = "quota",
            .what = "Show what the jobs of each owner take, and what they may",
            .group = "Service",
            .more =
                "Jobs are those in the queue or running, ranks those that run; 3/12 is three of "
                "at most twelve. Quotas are\nset in coordinator.yaml. A submitter sees only "
                "its own row.",
            .examples = "nsactl quota\nnsactl quota -o json",
            .run = Quota});
}

}  // namespace nsa::client
