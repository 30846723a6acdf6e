// Selects the events and jobs that a notice reports. Pure.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::server {

struct NoticeRule {
  std::string name;  // of the notice, which alerts of jobs may name (AlertSpec.notify)
  // Reasons of the events. Empty: the end of a job, and every event with the severity warning or
  // error.
  std::set<std::string> reasons;
  bool every_reason = false;
  std::map<std::string, std::string> labels;  // a job must have all of them
};

// InvalidArgument `events: 'COMPLETD' is not a reason of an event; did you mean COMPLETED?`.
absl::StatusOr<NoticeRule> MakeNoticeRule(const std::vector<std::string>& reasons);

// Whether the rule selects this event of this job. An alert that names notices goes to these,
// whatever reasons they select, and to '*'; where the raising of one goes, its end goes too. An
// event about a problem that somebody has muted (server/decide/problem) is selected by '*' only;
// the end of a job is never muted.
bool Concerns(const NoticeRule& rule, const v1::JobEvent& event, const v1::Job& job);

}  // namespace nsa::server
