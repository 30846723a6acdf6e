#include "worker/agent/rank/exit.h"

#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"

namespace nsa::agent {

std::optional<RankExit> LoadExit(const std::filesystem::path& file) {
  const absl::StatusOr<std::string> text = ReadWholeFile(file);
  const nlohmann::json json =
      nlohmann::json::parse(text.ok() ? *text : "", nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.value("code", nlohmann::json()).is_number_integer() ||
      !json.value("signal", nlohmann::json()).is_number_integer() ||
      !json.value("killed_by_agent", nlohmann::json()).is_boolean() ||
      !json.value("start_error", nlohmann::json()).is_string()) {
    return std::nullopt;
  }
  // Earlier agents wrote neither.
  const nlohmann::json restarted = json.value("machine_restarted", nlohmann::json());
  const nlohmann::json memory = json.value("out_of_memory", nlohmann::json());
  return RankExit{.code = json["code"].get<int>(),
                  .signal = json["signal"].get<int>(),
                  .killed_by_agent = json["killed_by_agent"].get<bool>(),
                  .machine_restarted = restarted.is_boolean() && restarted.get<bool>(),
                  .start_error = json["start_error"].get<std::string>(),
                  .out_of_memory = memory.is_string() ? memory.get<std::string>() : ""};
}

absl::Status SaveExit(const std::filesystem::path& file, const RankExit& exit) {
  const nlohmann::json json = {{"code", exit.code},
                               {"signal", exit.signal},
                               {"killed_by_agent", exit.killed_by_agent},
                               {"machine_restarted", exit.machine_restarted},
                               {"start_error", exit.start_error},
                               {"out_of_memory", exit.out_of_memory}};
  return WriteFileAtomically(file, json.dump());
}

}  // namespace nsa::agent
