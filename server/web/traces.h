// Traces for the page: recording one, and giving out those that were recorded.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/watch/http.h"
#include "server/web/json.h"
#include "server/web/trace_shelf.h"
#include "server/web/web.h"

namespace nsa::server {

// POST jobs/JOB/profile {"steps": N}: records the next N steps (1 to 100) of all ranks. The reply
// is a stream of lines of JSON, which occupies a thread of the HTTP server; there are at most
// ProfileBroker::kMostProfiles. About every half second:
//   {"ranks": [{"rank", "node", "received", "size", "error"}]}   what has arrived, in bytes
// and at the end either of
//   {"trace": {"id", "name", "bytes", "time"}, "problems": ["rank 1: …"]}
//   {"error": "…"}
// The recording ends with the stream: nothing is kept for a caller who has left. `who` is noted in
// the event. The errors of ProfileBroker::Begin(); NotFound; FailedPrecondition for a job that does
// not train.
absl::StatusOr<HttpReply> RecordTrace(const Web::Parts& parts, TraceShelf* shelf,
                                      const std::string& job, const std::string& body,
                                      const std::string& who);

// The traces of a job that are kept, the newest first.
absl::StatusOr<Json> TracesView(const Web::Parts& parts, const TraceShelf& shelf,
                                const std::string& job);

// One of them as a file to download, read from the disk piece by piece.
absl::StatusOr<HttpReply> TraceFile(const Web::Parts& parts, const TraceShelf& shelf,
                                    const std::string& job, const std::string& id);

}  // namespace nsa::server
