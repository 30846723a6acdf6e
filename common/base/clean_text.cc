#include "common/base/clean_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "common/base/characters/utf8.h"

namespace nsa {
namespace {

bool IsControl(uint32_t code) { return code < 0x20 || (code >= 0x7F && code < 0xA0); }

// Line and paragraph separators, and what changes the direction of writing.
bool Hides(uint32_t code) {
  return code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

enum class Form { kText, kLine, kJson, kShownJson };

std::string Clean(std::string_view text, Form form) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = FirstUtf8(text);
    const uint32_t code = character.code;
    const size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    if (character.bytes == 0) {
      absl::StrAppendFormat(&clean, "\\x%02x", static_cast<unsigned char>(text[0]));
    } else if (code == '\r' && form == Form::kText) {
      if (!text.substr(1).starts_with('\n')) clean += '\n';
    } else if (form == Form::kLine && (code == '\n' || code == '\t' || code == '\r')) {
      clean += code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r";
    } else if (code == '\n' || code == '\t') {
      clean += static_cast<char>(code);
    } else if (form == Form::kShownJson && (IsControl(code) || Hides(code))) {
      absl::StrAppendFormat(&clean, "\\\\u%04x", code);
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

std::string_view Shorten(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  const auto inside = [&] { return (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; };
  while (end > 0 && most - end < 3 && inside()) --end;
  return text.substr(0, end);
}

std::string CutText(std::string_view text, size_t most) {
  return std::string(Shorten(text, most)) + (text.size() > most ? "…" : "");
}

std::string CleanJson(std::string_view json) { return Clean(json, Form::kJson); }
std::string ShownJson(std::string_view json) { return Clean(json, Form::kShownJson); }

}  // namespace nsa
