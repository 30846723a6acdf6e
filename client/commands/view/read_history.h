// Reads what the coordinator keeps of jobs' training: curves for `plot` and `compare`, single
// records for `bisect` and `replay`.
#pragma once

#include <functional>
#include <string>
#include <string_view>
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

// The curves of these metrics of one to kMostJobs jobs, in the order of the jobs. InvalidArgument,
// which names `command`, when there are fewer than `least` or more than kMostJobs, or the same job
// twice.
absl::StatusOr<std::vector<ComparedJob>> ReadCurves(Client* client, const std::string& command,
                                                    const std::vector<std::string>& jobs,
                                                    size_t least,
                                                    const std::vector<std::string_view>& metrics);

}  // namespace nsa::client
