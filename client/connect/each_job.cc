#include "client/connect/each_job.h"

#include "absl/strings/str_cat.h"
#include "client/connect/client.h"

namespace nsa::client {
namespace {

bool ConcernsEveryJob(const absl::Status& status) {
  return absl::IsCancelled(status) || NoAnswer(status) || absl::IsUnauthenticated(status);
}

}  // namespace

absl::Status ForEachJob(const std::string& command, const std::vector<std::string>& jobs,
                        const std::function<absl::Status(const std::string& job)>& act,
                        const std::string& noun) {
  absl::Status first;
  std::string lines;
  int failed = 0;
  for (const std::string& job : jobs) {
    const absl::Status status = act(job);
    if (status.ok()) continue;
    if (jobs.size() == 1 || ConcernsEveryJob(status)) return status;
    if (failed++ == 0) first = status;
    absl::StrAppend(&lines, job, ": ", std::string(status.message()), "\n");
  }
  if (failed == 0) return absl::OkStatus();
  return absl::Status(first.code(), absl::StrCat(lines, command, ": failed for ", failed, " of ",
                                                 jobs.size(), " ", noun, "s; see the lines above"));
}

}  // namespace nsa::client
