#include "common/base/clean_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace nsa {
namespace {

struct Character {
  size_t bytes = 0;  // 0: not UTF-8
  uint32_t code = 0;
};

// The character of UTF-8 at the beginning of `text`, which is not empty.
Character First(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, lead};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  uint32_t code = lead & (0xFF >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kLeast[bytes] || code > 0x10FFFF || surrogate) return {};
  return {bytes, code};
}

bool IsControl(uint32_t code) { return code < 0x20 || (code >= 0x7F && code < 0xA0); }

// Line and paragraph separators, and what changes the direction of writing.
bool Hides(uint32_t code) {
  return code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

enum class Form { kText, kLine, kJson };

std::string Clean(std::string_view text, Form form) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const Character character = First(text);
    const uint32_t code = character.code;
    const size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    if (character.bytes == 0) {
      absl::StrAppendFormat(&clean, "\\x%02x", static_cast<unsigned char>(text[0]));
    } else if (code == '\n' || code == '\t') {
      if (form == Form::kLine) {
        clean += code == '\n' ? "\\n" : "\\t";
      } else {
        clean += static_cast<char>(code);
      }
    } else if (IsControl(code) && form != Form::kJson) {
      absl::StrAppendFormat(&clean, "\\x%02x", code);
    } else if (IsControl(code) || Hides(code)) {
      absl::StrAppendFormat(&clean, "\\u%04x", code);
    } else {
      clean += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return clean;
}

}  // namespace

std::string CleanText(std::string_view text) { return Clean(text, Form::kText); }
std::string CleanLine(std::string_view text) { return Clean(text, Form::kLine); }
std::string CleanJson(std::string_view json) { return Clean(json, Form::kJson); }

}  // namespace nsa
