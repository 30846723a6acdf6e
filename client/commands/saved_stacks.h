// nsactl dump-stack --saved: the stacks that the coordinator saved by itself.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli.h"

namespace nsa::client {

// Shows one entry; `id` 0 lists all and shows the newest.
absl::StatusOr<ExitCode> ShowSavedStacks(Session& session, const std::string& job, int64_t id);

}  // namespace nsa::client
