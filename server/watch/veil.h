// Hides other owners' jobs from callers limited to their own, also in error messages.
// `owner` is the caller's name; if it is empty, the caller sees every job and nothing is hidden.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/store/job_store.h"

namespace nsa::server {

// The text with "(another's)" in place of every word that has the form of a job's id and is not the
// id of one of the owner's jobs, so the text does not reveal which ids exist.
std::string Veiled(std::string_view text, const JobStore& store, const std::string& owner);

// The same for the message of an error. Its code and payloads stay.
absl::Status Veiled(const absl::Status& status, const JobStore& store, const std::string& owner);

// The same for the findings.
void Veil(const JobStore& store, const std::string& owner, v1::PreflightReport* report);

// Removes jobs of other owners from the lists of jobs on each node.
void KeepOwnJobs(const JobStore& store, const std::string& owner, v1::ListNodesResponse* nodes);

}  // namespace nsa::server
