// Logging with spdlog, set up in the same way by every program. One line for each record, in UTC,
// with the first letter of its level:
//   2026-11-20T16:31:02.123Z I coordinator: job j3k…: QUEUED → PREFLIGHT
//
//   NSA_RETURN_IF_ERROR(InitLog("coordinator", flags.log_level));
//   spdlog::info("job {}: {} → {}", id, from, to);
//   spdlog::warn("cache of data: {}", std::string(status.message()));
//
// Arguments may be of users and other machines: what would steer a terminal is shown as text.
//
// Threads: InitLog() is called once, at the beginning of main(), before there are others. After
// that any thread may log at any time; lines are never mixed. A call below the level costs a
// comparison and its arguments. One that writes holds a lock while standard error takes the line,
// so it waits for whoever reads that: loops of a step or a heartbeat log what is unusual, not what
// they do. Never log in a signal handler, nor in a child between fork() and exec().
#pragma once

#include <string>

#include "absl/status/status.h"
#include "spdlog/spdlog.h"

namespace nsa {

// Writes log lines to standard error, with this program name, from now on. `level` is trace, debug,
// info, warn, error, critical or off: records of a lower one are dropped. $NSA_LOG_LEVEL overrides
// it if it is not empty. InvalidArgument for any other level, which names where it was set; the log
// works then, with level info. A program name is used once in a process.
absl::Status InitLog(const std::string& program, const std::string& level = "info");

}  // namespace nsa
