// What is wrong with a job, in the words of the table (templates.h). Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/estimate/health.h"
#include "nsa/v1/job_health.pb.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::server {

// Fills in Job.problems and drops the mutes that do not hold any more. `job` is as clients see it,
// with its ranks; `found` is what its records say (HealthFindings), and `state_unix_nanos` when it
// entered its state.
void AddProblems(const std::vector<HealthFinding>& found, int64_t state_unix_nanos, v1::Job* job);

// Whether this mute holds: the job has neither ended nor been resumed since.
bool Holds(const v1::Mute& mute, const v1::Job& job);

// The problem that an event is about.
const std::string& WordOf(const v1::JobEvent& event);

// Whether a problem is muted, by its word or that of another one of its row.
bool IsMuted(const v1::Job& job, const std::string& word);

// What a warning or an error says beyond its text: cause, settings and remedies. Nothing for other
// events, and for a reason that is not in the table.
std::optional<v1::Problem> ProblemOf(const v1::JobEvent& event, const v1::Job& job);

}  // namespace nsa::server
