// Events of jobs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/reason.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::server {

// An event for JobStore::Update(), which fills in the rest. `rank`: of the rank that it is about.
inline v1::JobEvent EventOf(Reason reason, std::string text,
                            v1::Severity severity = v1::SEVERITY_INFO, int32_t rank = -1) {
  v1::JobEvent event;
  event.set_reason(Word(reason));
  event.set_text(std::move(text));
  event.set_severity(severity);
  event.set_rank(rank);
  return event;
}

// "info", "warning" or "error".
inline std::string SeverityName(v1::Severity severity) {
  if (severity == v1::SEVERITY_ERROR) return "error";
  return severity == v1::SEVERITY_WARNING ? "warning" : "info";
}

}  // namespace nsa::server
