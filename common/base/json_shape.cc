#include "common/base/json_shape.h"

#include <cstddef>

namespace nsa {

bool IsAsLargeAsItLooks(std::string_view json) {
  constexpr size_t kAny = 10'000;
  size_t objects = 0;
  size_t values = 0;
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') quoted = !quoted;
    if (c == '\\' && quoted) ++i;
    if (quoted) continue;
    objects += c == '{' ? 1 : 0;
    values += c == ',' || c == '[' || c == ':' ? 1 : 0;
  }
  return objects <= kAny + json.size() / 128 && values <= kAny + json.size() / 4;
}

}  // namespace nsa
