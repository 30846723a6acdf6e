// How a test controls fake_nvml.so, which simulates one GPU.
#pragma once

#include <atomic>
#include <cstdint>

struct FakeNvml {
  std::atomic<int64_t> free_bytes;
  std::atomic<bool> hangs;       // while true, calls do not return
  std::atomic<int64_t> waiting;  // number of calls that wait because of `hangs`
  std::atomic<int64_t> uncorrected_errors;
  std::atomic<int64_t> xid;  // the next event; 0: none
  std::atomic<bool> lost;    // while true, the GPU does not answer
};

// The symbol of the function that returns the FakeNvml of the library.
inline constexpr char kFakeNvmlSymbol[] = "NsaFakeNvml";
using FakeNvmlFunction = FakeNvml* (*)();
