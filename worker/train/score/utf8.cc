#include "worker/train/score/utf8.h"

#include <algorithm>

namespace nsa::train {
namespace {

// The length of a character that begins with this byte; 0 if the byte cannot begin one.
size_t LengthFrom(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

}  // namespace

size_t Utf8Length(std::string_view bytes) {
  const auto at = [&](size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0;
  };
  const auto first = at(0);
  const size_t length = LengthFrom(static_cast<unsigned char>(first));
  if (length == 1) return bytes.empty() ? 0 : 1;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && at(1) < 0xa0) || (first == 0xf0 && at(1) < 0x90);
  const bool surrogate = first == 0xed && at(1) > 0x9f;
  const bool too_large = first == 0xf4 && at(1) > 0x8f;
  return overlong || surrogate || too_large ? 0 : length;
}

size_t SettledUtf8(std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const std::string_view rest = bytes.substr(done);
    if (LengthFrom(static_cast<unsigned char>(rest[0])) > rest.size()) break;
    done += std::max<size_t>(1, Utf8Length(rest));
  }
  return done;
}

std::string ValidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = Utf8Length(bytes);
    text += length == 0 ? kReplacementCharacter : bytes.substr(0, length);
    bytes.remove_prefix(std::max<size_t>(1, length));
  }
  return text;
}

int64_t Utf8Characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace nsa::train
