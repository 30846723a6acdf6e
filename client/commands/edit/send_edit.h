// The request of `nsactl label`, `note`, `mute` and `unmute`.
#pragma once

#include <string>

#include "client/connect/resend.h"
#include "client/connect/session.h"
#include "common/base/status.h"

namespace nsa::client {

// Sends `request` for this job and returns the job as it is then. Sent again after a lost
// connection, it has the same request id.
inline absl::StatusOr<v1::Job> SendEdit(Session& session, Client* client,
                                        v1::EditJobRequest request, const std::string& job) {
  request.set_job(job);
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  NSA_ASSIGN_OR_RETURN(const auto response,
                       Resend(session, [&] { return client->Call<v1::EditJobResponse>(request); }));
  return response.job();
}

}  // namespace nsa::client
