#include "common/base/log.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace nsa {

absl::Status InitLog(const std::string& program, const std::string& level) {
  auto logger = spdlog::stderr_logger_mt(program);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%L%$ %n: %v", spdlog::pattern_time_type::utc);
  const char* from_environment = std::getenv("NSA_LOG_LEVEL");
  const bool overridden = from_environment != nullptr && *from_environment != '\0';
  const std::string wanted = overridden ? from_environment : level;
  // from_str() returns `off` for an unknown name, which would silence the program.
  const spdlog::level::level_enum parsed = spdlog::level::from_str(wanted);
  const bool known = parsed != spdlog::level::off || wanted == "off";
  logger->set_level(known ? parsed : spdlog::level::info);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  if (known) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(overridden ? "NSA_LOG_LEVEL" : "--log-level", ": '", wanted,
                   "' (trace, debug, info, warn, error, critical or off); choose one of these"));
}

}  // namespace nsa
