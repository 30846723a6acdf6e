// How a test controls fake_nvml.so, which simulates one GPU.
#pragma once

#include <atomic>
#include <cstdint>

struct FakeNvml {
  std::atomic<int64_t> free_bytes;
  std::atomic<bool> hangs;       // while true, calls do not return
  std::atomic<int64_t> waiting;  // number of calls that wait because of `hangs`
};

// The symbol of the function that returns the FakeNvml of the library.
inline constexpr char kFakeNvmlSymbol[] = "NsaFakeNvml";
using FakeNvmlFunction = FakeNvml* (*)();
