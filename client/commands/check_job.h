// Runs preflight on a job that is not submitted: `validate` and `init`.
#pragma once

#include "absl/status/statusor.h"
#include "client/connect/session.h"
#include "common/preflight/preflight.h"

namespace nsa::client {

// Without a coordinator. Rules about files look at this machine's disks; rules about the machine
// that would run the job are skipped.
v1::PreflightReport CheckHere(v1::JobSpec spec);

// By the coordinator and its machines.
absl::StatusOr<v1::PreflightReport> CheckThere(Session& session, const v1::JobSpec& spec);

}  // namespace nsa::client
