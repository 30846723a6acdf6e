// What the page can change. Each change is checked like nsactl's, and leaves an event.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/web/json.h"
#include "server/web/web.h"

namespace nsa::server {

// POST /api/v1/jobs/JOB/`verb` with a JSON body:
//   stop    {"mode": "graceful" | "now" | "at_step", "at_step": N}
//   resume  {"request_id": UUID}
//   stacks  {}                           saves the stacks of all ranks; waits up to 5 s
//   pin     {"step": N, "pinned": bool}  keeps a checkpoint, or no longer
//   note    {"text": TEXT, "request_id": UUID}  writes a note among the events (edit_job.h)
//   label   {"set": {KEY: VALUE}, "remove": [KEY], "request_id": UUID}  changes the labels
//   clone   {"text": YAML, "request_id": UUID}  submits a new job (clone.h)
// `who` is the operator, whose name a note and a new job have.
// NotFound for another verb or job, InvalidArgument for a wrong body.
absl::StatusOr<Json> Steer(const Web::Parts& parts, const std::string& job, const std::string& verb,
                           const std::string& body, const std::string& who);

}  // namespace nsa::server
