// What a test says to fake_nvml.so: one GPU, of whose memory so much is free.
#pragma once

#include <atomic>
#include <cstdint>

struct FakeNvml {
  std::atomic<int64_t> free_bytes;
  std::atomic<bool> hangs;       // calls do not return while it is set
  std::atomic<int64_t> waiting;  // calls that do not return now
};

// The symbol of the function that returns it.
inline constexpr char kFakeNvmlSymbol[] = "NsaFakeNvml";
using FakeNvmlFunction = FakeNvml* (*)();
