// The logs of a job's ranks as the page reads them: the end of one, and all of it as a file.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/watch/http.h"
#include "server/web/json.h"
#include "server/web/web.h"

namespace nsa::server {

// The last ?lines= (at most 1,000) lines of ?rank=, and at most 256 KiB.
absl::StatusOr<Json> LogView(const Web::Parts& parts, const std::string& job,
                             const HttpRequest& request);

// What is kept of the log of ?rank=, from its first line, at most kMostFileBytes. It takes the
// place of a stream while it is sent, because a slow reader holds a thread: Unavailable when there
// is none.
inline constexpr size_t kMostFileBytes = size_t{1} << 30;
absl::StatusOr<HttpReply> LogFile(const Web::Parts& parts, const std::string& job,
                                  const HttpRequest& request,
                                  const std::shared_ptr<std::atomic<int>>& streams);

}  // namespace nsa::server
