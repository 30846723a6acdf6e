// Reads little-endian integers from bytes.
#pragma once

#include <bit>
#include <cstring>
#include <string_view>

namespace nsa {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

// The integer in the first sizeof(T) bytes of `bytes`, which has at least that many.
template <typename T>
T LittleEndian(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace nsa
