// CRC-32C (Castagnoli), as TensorBoard's record files want it.
#pragma once

#include <cstdint>
#include <string_view>

namespace nsa {

// By the processor's instruction where it has one. "123456789" gives 0xe3069283.
uint32_t Crc32c(std::string_view bytes);

// The same by table, for processors without the instruction and for the test of both.
uint32_t Crc32cByTable(std::string_view bytes);

// Rotated and offset, so that the checksum of data that holds checksums stays a good one.
inline uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace nsa
