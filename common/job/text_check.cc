#include "common/job/text_check.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/characters/utf8.h"

namespace nsa {
namespace {

using std::string_view_literals::operator""sv;

SourcePlace PlaceOf(std::string_view text, size_t offset) {
  SourcePlace place{1, 1};
  for (size_t i = 0; i < offset; ++i) {
    ++place.column;
    if (text[i] == '\n') place = {place.line + 1, 1};
  }
  return place;
}

bool IsForbiddenControl(char c) {
  const auto u = static_cast<uint8_t>(c);
  return (u < 0x20 && c != '\t' && c != '\n' && c != '\r') || u == 0x7F;
}

}  // namespace

std::string_view WideEncoding(std::string_view text) {
  // The mark of little-endian UTF-32 begins with that of UTF-16.
  for (const std::string_view mark : {"\xFF\xFE\0\0"sv, "\0\0\xFE\xFF"sv}) {
    if (text.starts_with(mark)) return "UTF-32";
  }
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF") ? "UTF-16" : "";
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = FirstUtf8(text).bytes;
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string WithUtf8Escapes(std::string_view value) {
  std::string text;
  while (!value.empty()) {
    size_t length = FirstUtf8(value).bytes;
    if (length == 0) {
      text += '\xC2';  // U+0080 to U+00BF are 0xC2 and the byte itself
      length = 1;
    }
    text += value.substr(0, length);
    value.remove_prefix(length);
  }
  return text;
}

std::optional<LoadError> CheckText(std::string_view* text) {
  *text = WithoutByteOrderMark(*text);
  if (text->size() > kMaxYamlBytes) {
    return LoadError{{1, 1},
                     "yaml",
                     absl::StrFormat("%d bytes (at most %d); a job or a configuration is a few "
                                     "kilobytes, is this the right file?",
                                     text->size(), kMaxYamlBytes)};
  }
  if (!WideEncoding(*text).empty()) {
    return LoadError{{1, 1}, "yaml", "UTF-16 or UTF-32 text; save the file as UTF-8"};
  }
  for (size_t i = 0; i < text->size();) {
    const std::string_view rest = text->substr(i);
    if (rest[0] == '\0') {
      return LoadError{PlaceOf(*text, i), "yaml", "NUL byte; save the file as UTF-8 text"};
    }
    if (IsForbiddenControl(rest[0])) {
      return LoadError{PlaceOf(*text, i), "yaml",
                       absl::StrFormat("control character 0x%02X; remove it", rest[0])};
    }
    const size_t length = FirstUtf8(rest).bytes;
    if (length == 0) {
      return LoadError{
          PlaceOf(*text, i), "yaml",
          absl::StrFormat("byte 0x%02X is not valid UTF-8; save the file as UTF-8 text",
                          static_cast<uint8_t>(rest[0]))};
    }
    i += length;
  }
  return std::nullopt;
}

}  // namespace nsa
