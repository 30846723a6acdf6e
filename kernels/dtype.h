// Element types. bf16 here is storage only; arithmetic on it happens in fp32.
#pragma once

#include <bit>
#include <cstdint>

namespace nsa {

enum class DType : uint8_t { kF32, kBf16, kI32, kI64, kU8 };

// The upper half of an fp32, rounded to nearest even; NaN stays NaN. The same bits on host and
// device.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    if ((raw & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((raw >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

template <class T>
constexpr DType DTypeOf();
template <>
constexpr DType DTypeOf<float>() {
  return DType::kF32;
}
template <>
constexpr DType DTypeOf<bf16>() {
  return DType::kBf16;
}
template <>
constexpr DType DTypeOf<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType DTypeOf<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType DTypeOf<uint8_t>() {
  return DType::kU8;
}

// Bytes of one element.
constexpr int64_t SizeOf(DType type) {
  switch (type) {
    case DType::kF32:
      return 4;
    case DType::kBf16:
      return 2;
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
    case DType::kU8:
      return 1;
  }
  return 0;
}

}  // namespace nsa
