// Logging: spdlog behind three functions that every program sets up alike. One line a record:
//   2026-11-20T16:31:02.123Z I coordinator: job j3k…: QUEUED → PREFLIGHT
#pragma once

#include <string>

#include "spdlog/spdlog.h"

namespace nsa {

// Sends log lines to standard error under this program name. `level`: trace, debug, info, warn,
// error; $NSA_LOG_LEVEL wins over it.
void InitLog(const std::string& program, const std::string& level = "info");

}  // namespace nsa
