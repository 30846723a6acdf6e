// How the process of a rank ended, also for the next agent.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace nsa::agent {

struct RankExit {
  int code = -1;  // -1: a signal ended it, or it is not known
  int signal = 0;
  bool killed_by_agent = false;
  bool machine_restarted = false;  // the machine was started again after the worker was
  std::string start_error;         // why it could not be started
  std::string out_of_memory;       // OutOfMemoryText()

  bool operator==(const RankExit&) const = default;
};

// Nothing unless `file` holds one.
std::optional<RankExit> LoadExit(const std::filesystem::path& file);

// Writes it atomically.
absl::Status SaveExit(const std::filesystem::path& file, const RankExit& exit);

}  // namespace nsa::agent
