#include "common/base/environment.h"

#include <unistd.h>  // environ

namespace nsa {

std::map<std::string, std::string> VariablesWith(std::string_view prefix) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (!text.starts_with(prefix) || equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::vector<ReplacedVariable> ReplacedVariables(const std::map<std::string, std::string>& given,
                                                const std::map<std::string, std::string>& now) {
  std::vector<ReplacedVariable> replaced;
  for (const auto& [name, value] : given) {
    const auto used = now.find(name);
    if (used == now.end()) {
      replaced.push_back({.name = name, .given = value});
    } else if (used->second != value) {
      replaced.push_back({.name = name, .given = value, .used = used->second});
    }
  }
  return replaced;
}

}  // namespace nsa
