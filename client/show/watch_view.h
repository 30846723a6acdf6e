// What `nsactl watch` shows, as pure functions of the job and the time.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::client {

struct ViewOptions {
  int columns = 80;
  bool unicode = true;
  bool colours = true;
};

// What the view needs to know besides the job.
struct ViewMoment {
  absl::Time now;
  absl::Time received;     // when the job's state arrived
  bool connected = true;   // the coordinator can be reached
  absl::Duration silence;  // how long it has been unreachable
};

// The lines of the live view, none wider than the terminal.
std::vector<std::string> LiveView(const v1::Job& job, const ViewMoment& moment,
                                  const ViewOptions& options);

// The same on one line with a time stamp, for logs and pipes.
std::string PlainLine(const v1::Job& job, absl::Time now);

// "2026-11-20T16:31:02+01:00 training → restarting  RANK_LOST: rank 1 ended by signal 9"; only the
// title of now if it was `from` before, too. Not clipped.
std::string TransitionLine(const v1::Job& job, absl::Time now, const std::string& from,
                           const ViewOptions& options);

// A few lines about the end of a job, with commands to try next.
std::string Summary(const v1::Job& job, const ViewOptions& options);

// Seconds to the end, counted down since the state arrived; negative when unknown.
double EtaNow(const v1::JobProgress& progress, const ViewMoment& moment);

// True when `job` is in another state or generation than `previous`, or was asked to stop.
bool IsTurn(const v1::Job& previous, const v1::Job& job);

// True when there was a validation or a checkpoint between the two.
bool IsNews(const v1::Job& previous, const v1::Job& job);

}  // namespace nsa::client
