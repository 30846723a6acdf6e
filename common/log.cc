#include "common/log.h"

#include <cstdlib>

#include "spdlog/sinks/stdout_sinks.h"

namespace nsa {

void InitLog(const std::string& program, const std::string& level) {
  auto logger = spdlog::stderr_logger_mt(program);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%L%$ %n: %v", spdlog::pattern_time_type::utc);
  const char* from_environment = std::getenv("NSA_LOG_LEVEL");
  logger->set_level(
      spdlog::level::from_str(from_environment != nullptr ? from_environment : level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace nsa
