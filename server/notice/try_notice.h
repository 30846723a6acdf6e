// Sends a sample through one notice, for `nsa-coordinator --test-notice NAME`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "server/notice/notice.h"

namespace nsa::server {

// Sends one made-up event once, whatever the notice's events and labels are. Returns what the
// receiver said, human-readable; Unavailable or FailedPrecondition with the same when it was not
// delivered. InvalidArgument for a name that no notice has. Needs no running coordinator and
// changes no file. Takes at most a minute.
absl::StatusOr<std::string> TryNotice(const NoticeOptions& options, const std::string& name,
                                      const std::string& page_url, const Clock& clock);

}  // namespace nsa::server
