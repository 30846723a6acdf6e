#include "worker/train/telemetry/crc32c.h"

#include <array>
#include <cstring>

namespace nsa::train {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) uint32_t ByInstruction(std::string_view bytes) {
  uint64_t crc = 0xffffffffu;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    crc = __builtin_ia32_crc32di(crc, word);
  }
  auto low = static_cast<uint32_t>(crc);
  for (; i < bytes.size(); ++i) {
    low = __builtin_ia32_crc32qi(low, static_cast<unsigned char>(bytes[i]));
  }
  return ~low;
}
#endif

}  // namespace

uint32_t Crc32cByTable(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

uint32_t Crc32c(std::string_view bytes) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("sse4.2")) return ByInstruction(bytes);
#endif
  return Crc32cByTable(bytes);
}

}  // namespace nsa::train
