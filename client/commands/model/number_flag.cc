#include "client/commands/model/number_flag.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nsa::client {

absl::Status CheckNumber(const std::string& flag, const std::string& text, bool (*good)(double),
                         const std::string& limit) {
  double value = 0;
  if (text.empty() || (absl::SimpleAtod(text, &value) && std::isfinite(value) && good(value))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": '", text, "' (a number, ", limit, "); give one, e.g. 0.8"));
}

absl::Status CheckTemperature(const std::string& text) {
  return CheckNumber(
      "--temperature", text, [](double x) { return x >= 0; }, "at least 0");
}

}  // namespace nsa::client
