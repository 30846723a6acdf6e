// CRC-32C (Castagnoli), which TensorBoard's record files use.
#pragma once

#include <cstdint>
#include <string_view>

namespace nsa::train {

// Uses the processor's CRC instruction if there is one. "123456789" gives 0xe3069283.
uint32_t Crc32c(std::string_view bytes);

// The same with a table, for processors without the instruction and for tests.
uint32_t Crc32cByTable(std::string_view bytes);

// The masked CRC of TensorBoard's format: rotated and with an offset, because a plain CRC of data
// that contains CRCs is a poor checksum.
inline uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace nsa::train
