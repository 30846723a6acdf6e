#include "common/base/log.h"

#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace nsa {
namespace {

// `%*`: the message, with what would steer a terminal made visible.
class CleanMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& to) override {
    const std::string text =
        CleanText(std::string_view(message.payload.data(), message.payload.size()));
    to.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<CleanMessage>();
  }
};

}  // namespace

absl::Status InitLog(const std::string& program, const std::string& level) {
  auto logger = spdlog::stderr_logger_mt(program);
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<CleanMessage>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%L%$ %n: %*");
  logger->set_formatter(std::move(formatter));
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
