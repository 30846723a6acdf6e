#include "worker/train/score/utf8.h"

#include <algorithm>

#include "common/base/characters/utf8.h"

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

size_t SettledUtf8(std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const std::string_view rest = bytes.substr(done);
    if (LengthFrom(static_cast<unsigned char>(rest[0])) > rest.size()) break;
    done += std::max<size_t>(1, FirstUtf8(rest).bytes);
  }
  return done;
}

std::string ValidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = FirstUtf8(bytes).bytes;
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
