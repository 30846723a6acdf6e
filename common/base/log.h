// Logging: spdlog behind three functions that every program sets up alike. One line a record:
//   2026-11-20T16:31:02.123Z I coordinator: job j3k…: QUEUED → PREFLIGHT
#pragma once

#include <string>

#include "absl/status/status.h"
#include "spdlog/spdlog.h"

namespace nsa {

// Sends log lines to standard error under this program name. `level`: trace, debug, info, warn,
// error, critical or off; $NSA_LOG_LEVEL, when not empty, wins over it. InvalidArgument for another
// one; lines from info on are then shown.
absl::Status InitLog(const std::string& program, const std::string& level = "info");

}  // namespace nsa
