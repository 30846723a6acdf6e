// XXH3-128 of bytes that come in pieces: the hash of a checkpoint's files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace nsa {

// One thread at a time.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();

  void Add(std::span<const std::byte> bytes);

  // Of all bytes so far: 32 lower-case hexadecimal digits, the most significant first.
  std::string Hex() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace nsa
