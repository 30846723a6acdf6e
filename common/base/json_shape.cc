#include "common/base/json_shape.h"

#include <algorithm>
#include <cstdint>

namespace nsa {

namespace {

// Calls visit(c) for each character that is not in a text.
template <typename Visit>
void ForEachOutsideTexts(std::string_view json, Visit visit) {
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') quoted = !quoted;
    if (c == '\\' && quoted) ++i;
    if (!quoted) visit(c);
  }
}

}  // namespace

bool IsAsLargeAsItLooks(std::string_view json) {
  constexpr size_t kAny = 10'000;
  size_t objects = 0;
  size_t values = 0;
  ForEachOutsideTexts(json, [&](char c) {
    objects += c == '{' ? 1 : 0;
    values += c == ',' || c == '[' || c == ':' ? 1 : 0;
  });
  return objects <= kAny + json.size() / 128 && values <= kAny + json.size() / 4;
}

bool IsShallow(std::string_view json) {
  constexpr int64_t kDeepest = 100;
  int64_t depth = 0, deepest = 0;
  ForEachOutsideTexts(json, [&](char c) {
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
  });
  return deepest <= kDeepest;
}

size_t SelfHashPlace(std::string_view json, std::span<const std::string_view> keys, size_t digits) {
  size_t end_of_key = 0;  // Search from the end: it is the last key, and a label may have its name.
  for (const std::string_view name : keys) {
    const size_t key = json.rfind(name);
    if (key != std::string_view::npos) end_of_key = std::max(end_of_key, key + name.size());
  }
  const size_t quote = end_of_key > 0 ? json.find('"', end_of_key) : std::string_view::npos;
  if (quote == std::string_view::npos || quote + 1 + digits >= json.size()) {
    return std::string_view::npos;
  }
  return json[quote + 1 + digits] == '"' ? quote + 1 : std::string_view::npos;
}

}  // namespace nsa
