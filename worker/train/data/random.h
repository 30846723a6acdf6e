// Random numbers that depend only on a key: the same on every machine, rank and thread.
#pragma once

#include <cstdint>

namespace nsa::train {

// The finaliser of SplitMix64: a bijection on 64-bit numbers that mixes all bits.
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
inline uint64_t Mix(uint64_t a, uint64_t b) { return Mix(Mix(a) ^ b); }
inline uint64_t Mix(uint64_t a, uint64_t b, uint64_t c) { return Mix(Mix(a, b) ^ c); }

// Uniform in [0, 1), of 64 random bits.
inline double Unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// The random numbers of one key.
class KeyedRandom {
 public:
  explicit KeyedRandom(uint64_t key) : key_(key) {}

  uint64_t Next() { return Mix(key_, counter_++); }

  // Uniform in [0, 1).
  double Uniform() { return Unit(Next()); }

  // Uniform in [0, n), 0 < n < 2^32, with a bias below n / 2^64.
  uint32_t Below(uint32_t n) {
    return static_cast<uint32_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }

 private:
  const uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace nsa::train
