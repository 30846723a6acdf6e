// Reads what the coordinator keeps of jobs' training; shared by `plot`, `compare`, `report`,
// `bisect` and `replay`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/client.h"
#include "client/connect/collect_jobs.h"
#include "client/connect/session.h"
#include "client/show/comparison.h"

namespace nsa::client {

// There are as many colours.
inline constexpr size_t kMostJobs = 8;

// Passes on all records of a job's rank, -1 for all of them, that the coordinator keeps: the newest
// 20,000 of each start and rank.
absl::Status ReadRecords(Client* client, const std::string& id,
                         const std::function<void(const v1::WatchRecordsResponse&)>& take,
                         int32_t rank = 0);

// The jobs that a command is about: those that are named, then, when the filter is not empty, those
// that match it and are not named, oldest first. Beyond kMostJobs the oldest of these are left out,
// with a note. NotFound when no job is named and none matches, or a name is unknown.
absl::StatusOr<std::vector<std::string>> ChooseJobs(Session& session, Client* client,
                                                    const std::string& command,
                                                    const std::vector<std::string>& named,
                                                    const JobFilter& filter);

// The job and these records of it.
absl::StatusOr<ComparedJob> ReadHistory(Client* client, const std::string& job);

// The same for several jobs, in their order. InvalidArgument, which names `command`, when there are
// fewer than `least` or more than kMostJobs, or the same job twice.
absl::StatusOr<std::vector<ComparedJob>> ReadHistories(Client* client, const std::string& command,
                                                       const std::vector<std::string>& jobs,
                                                       size_t least);

}  // namespace nsa::client
