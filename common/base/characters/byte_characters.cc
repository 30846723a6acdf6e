#include "common/base/characters/byte_characters.h"

#include <cstdint>

namespace nsa {
namespace {

std::string Utf8(uint32_t code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 63))};
}

}  // namespace

std::array<std::string, 256> BytesAsCharacters() {
  std::array<std::string, 256> characters;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = Utf8(printable ? byte : next++);
  }
  return characters;
}

}  // namespace nsa
