// A new job with the settings of another one, changed by hand on the page.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/web/json.h"
#include "server/web/web.h"

namespace nsa::server {

// POST /api/v1/jobs/JOB/clone {"text": YAML, "request_id": UUID}: submits the job file in `text` in
// the name of the operator `who` and returns {"id"}. The page fills `text` with the settings of JOB
// and another name and out_dir; JOB must exist and is not changed. The ranks run as the agents'
// user. It is not part of JOB's sweep. InvalidArgument with one line for each mistake in the text,
// or for each finding of preflight that refuses it; the other errors are those of SubmitJob.
absl::StatusOr<Json> Clone(const Web::Parts& parts, const std::string& job, const Json& body,
                           const std::string& who);

}  // namespace nsa::server
