#include "client/connect/follow.h"

#include <algorithm>

#include "client/show/job_text.h"
#include "common/base/status.h"

namespace nsa::client {

bool Backoff::Wait(Interrupt* interrupt) {
  const absl::Duration now = next_;
  next_ = std::min(next_ * 2, absl::Seconds(1));
  return interrupt->SleepFor(now);
}

absl::Status Follow(Session& session, const std::string& id,
                    const std::function<absl::Status()>& attempt) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  Backoff backoff;
  bool lost = false;
  while (true) {
    absl::Status status =
        lost ? client->Call<v1::GetVersionResponse>(v1::GetVersionRequest()).status()
             : absl::OkStatus();
    if (status.ok()) {
      if (lost) session.Note("nsactl: reconnected");
      lost = false;
      status = attempt();
    }
    if (!session.out()) return absl::InternalError("standard output: cannot be written");
    if (status.ok() && !id.empty()) {
      // A stream ends when its job ends, and when the coordinator shuts down.
      const absl::StatusOr<v1::Job> job = client->GetJob(id);
      if (job.ok() && HasEnded(*job)) return absl::OkStatus();
      status = job.status();
    }
    if (!status.ok() && !NoAnswer(status)) return status;
    if (!status.ok() && !lost) {
      session.Note("nsactl: connection to the coordinator lost; waiting for it (Ctrl-C leaves)");
    } else if (status.ok()) {
      backoff.Reset();
    }
    lost = !status.ok();
    if (!backoff.Wait(&session.interrupt())) return absl::CancelledError("interrupted");
  }
}

}  // namespace nsa::client
