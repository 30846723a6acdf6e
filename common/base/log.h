// Logging with spdlog, set up in the same way by every program. One line for each record:
//   2026-11-20T16:31:02.123Z I coordinator: job j3k…: QUEUED → PREFLIGHT
#pragma once

#include <string>

#include "absl/status/status.h"
#include "spdlog/spdlog.h"

namespace nsa {

// Writes log lines to standard error, with this program name. `level` is trace, debug, info, warn,
// error, critical or off; $NSA_LOG_LEVEL overrides it if it is not empty. InvalidArgument for any
// other level; the level is then info.
absl::Status InitLog(const std::string& program, const std::string& level = "info");

}  // namespace nsa
