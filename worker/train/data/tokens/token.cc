#include "worker/train/data/tokens/token.h"

#include <cstddef>
#include <cstring>

namespace nsa::train {
namespace {

template <typename T>
void PackAs(std::span<const Token> tokens, void* to) {
  auto* at = static_cast<std::byte*>(to);
  for (const Token token : tokens) {
    const auto packed = static_cast<T>(token);
    std::memcpy(at, &packed, sizeof(T));
    at += sizeof(T);
  }
}

template <typename T>
void UnpackAs(const void* from, std::span<Token> tokens) {
  const auto* at = static_cast<const std::byte*>(from);
  for (Token& token : tokens) {
    T packed;
    std::memcpy(&packed, at, sizeof(T));
    token = static_cast<Token>(packed);
    at += sizeof(T);
  }
}

}  // namespace

void PackTokens(std::span<const Token> tokens, int width, void* to) {
  if (width == 1) {
    PackAs<uint8_t>(tokens, to);
  } else if (width == 2) {
    PackAs<uint16_t>(tokens, to);
  } else {
    PackAs<uint32_t>(tokens, to);
  }
}

void UnpackTokens(const void* from, int width, std::span<Token> tokens) {
  if (width == 1) {
    UnpackAs<uint8_t>(from, tokens);
  } else if (width == 2) {
    UnpackAs<uint16_t>(from, tokens);
  } else {
    UnpackAs<uint32_t>(from, tokens);
  }
}

}  // namespace nsa::train
