#include "common/export/config_keys.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/count.h"

namespace nsa {

const nlohmann::json& ConfigKeys::operator[](const char* key) const {
  static const nlohmann::json none;
  const auto found = json.find(key);
  return found == json.end() ? none : *found;
}

absl::Status ConfigKeys::Wrong(const char* key, const std::string& wanted) const {
  const std::string found = json.contains(key) ? json[key].dump() : "missing";
  return absl::InvalidArgumentError(absl::StrFormat("config.json: %s: %s (must be %s); %s", key,
                                                    CutText(found, 100), wanted, fix));
}

absl::Status ConfigKeys::ReadInt(const char* key, int64_t most, int32_t* value) const {
  const nlohmann::json& found = (*this)[key];
  if (!found.is_number_integer() || found.get<int64_t>() < 1 || found.get<int64_t>() > most) {
    return Wrong(key, absl::StrCat("a whole number from 1 to ", most));
  }
  *value = found.get<int32_t>();
  return absl::OkStatus();
}

absl::Status ConfigKeys::ReadPositive(const char* key, double most, double* value) const {
  const nlohmann::json& found = (*this)[key];
  if (!found.is_number() || !(found.get<double>() > 0) || !(found.get<double>() <= most)) {
    return Wrong(key, absl::StrFormat("a number above 0 and at most %s", Number(most)));
  }
  *value = found.get<double>();
  return absl::OkStatus();
}

absl::Status ConfigKeys::ReadWithin(const char* key, double least, double most,
                                    double* value) const {
  const nlohmann::json& found = (*this)[key];
  if (!found.is_number() || !(found.get<double>() >= least) || !(found.get<double>() <= most)) {
    return Wrong(key, absl::StrFormat("a number from %s to %s", Number(least), Number(most)));
  }
  *value = found.get<double>();
  return absl::OkStatus();
}

absl::Status ConfigKeys::ReadBool(const char* key, bool* value) const {
  const nlohmann::json& found = (*this)[key];
  if (!found.is_boolean()) return Wrong(key, "true or false");
  *value = found.get<bool>();
  return absl::OkStatus();
}

absl::Status CheckKeys(const nlohmann::json& config, const nlohmann::ordered_json& wanted) {
  for (const auto& [key, value] : wanted.items()) {
    const auto found = config.find(key);
    const bool there = found != config.end();
    if (there ? *found == nlohmann::json(value) : value.is_null()) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "config.json: %s: %s (checkpoint_state.json has %s); remove checkpoint_state.json to "
        "import the model without its training state",
        key, there ? CutText(found->dump(), 100) : "missing", value.dump()));
  }
  return absl::OkStatus();
}

}  // namespace nsa
