#include "client/commands/view/read_history.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"
#include "common/base/status.h"

namespace nsa::client {

absl::Status ReadRecords(Client* client, const std::string& id,
                         const std::function<void(const v1::WatchRecordsResponse&)>& take,
                         int32_t rank) {
  v1::WatchRecordsRequest request;
  request.set_job(id);
  request.set_rank(rank);
  return client->Stream<v1::WatchRecordsResponse>(request,
                                                  [&take](const v1::WatchRecordsResponse& record) {
                                                    take(record);
                                                    return true;
                                                  });
}

absl::StatusOr<std::vector<std::string>> ChooseJobs(Session& session, Client* client,
                                                    const std::string& command,
                                                    const std::vector<std::string>& named,
                                                    const JobFilter& filter) {
  if (filter.empty() || named.size() > kMostJobs) return named;
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsRequest request, RequestOf(filter));
  std::vector<std::string> ids;
  for (const std::string& name : named) {
    NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(name));
    ids.push_back(job.id());
  }
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsResponse found, CollectJobs(client, request, 0));
  std::vector<std::string> matching;
  for (const v1::Job& job : found.jobs()) {
    if (std::ranges::find(ids, job.id()) == ids.end()) matching.push_back(job.id());
  }
  if (named.empty() && matching.empty()) {
    return absl::NotFoundError(absl::StrCat(
        command, ": no job is in these states and has these labels; `nsactl list` shows them"));
  }
  const size_t room = kMostJobs - ids.size();
  if (matching.size() > room) {
    session.Note(absl::StrCat(Count(static_cast<int64_t>(matching.size()), "job"),
                              " match; these are the newest ", room, " of them"));
    matching.resize(room);
  }
  ids.insert(ids.end(), matching.rbegin(), matching.rend());
  return ids;
}

absl::StatusOr<std::vector<ComparedJob>> ReadCurves(Client* client, const std::string& command,
                                                    const std::vector<std::string>& jobs,
                                                    size_t least,
                                                    const std::vector<std::string_view>& metrics) {
  if (jobs.size() < least || jobs.size() > kMostJobs) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, ": ", Count(static_cast<int64_t>(jobs.size()), "job"), " (from ",
                     least, " to ", kMostJobs, "); name ", jobs.size() < least ? "more" : "fewer"));
  }
  std::vector<ComparedJob> read;
  std::set<std::string> ids;
  for (const std::string& job : jobs) {
    ComparedJob one;
    NSA_ASSIGN_OR_RETURN(one.job, client->GetJob(job));
    if (!ids.insert(one.job.id()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(command, ": ", job, " is job ", one.job.id(), " again; name it once"));
    }
    NSA_ASSIGN_OR_RETURN(v1::GetCurvesResponse curves,
                         client->Call<v1::GetCurvesResponse>(CurvesRequest(one.job.id(), metrics)));
    one.curves = JobCurves(std::move(curves));
    read.push_back(std::move(one));
  }
  return read;
}

}  // namespace nsa::client
