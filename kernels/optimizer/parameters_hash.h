// A 64-bit hash of a flat buffer of fp32 values, by which two runs, or two ranks of one run, show
// that they have the same parameters.
//
//   hash = Σ_i HashOfValue(i, bits of value i)  modulo 2^64
//
// The sum does not depend on its order, so any number of threads gives the same hash, and a GPU
// the same as the CPU. A change of one value, be it of a single bit (a zero that changes its sign
// too), always changes the hash, because HashOfValue(i, ·) takes no number twice. Several changes
// at once, e.g. two values that are swapped, leave it unchanged with a probability of 2^-64.
//
// Cost: each value is read once, 4 bytes, with about 25 integer instructions. 78.3 M parameters are
// 313 MB: 0.08 ms at the 4 TB/s of an H200; its integer units need about 0.15 ms (both by counting,
// not measured). Once each 100 steps of 60 ms this is 0.003 % of a step. A CPU core takes 0.8 to
// 2.5 ns a value (measured), which is 0.03 % of the steps of the smallest models of the tests.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/nsa/visibility.h"  // NSA_HOST_DEVICE
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// The term of value `index` with these bits: SplitMix64 with a state of its own for each index. Its
// last three lines and the sum before them are one-to-one, so other bits give another number.
NSA_HOST_DEVICE uint64_t HashOfValue(uint64_t index, uint32_t bits) {
  uint64_t x = index * 0x9e3779b97f4a7c15u + bits;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct ParametersHashArgs {
  ConstTensor values;        // fp32, any size
  int64_t first = 0;         // index of the first value: the hashes of two parts add up
  uint64_t* hash = nullptr;  // [1], overwritten; where the values are; aligned to 8 bytes
};

// Waits for nothing on a GPU: the hash is there when the stream has got there. InvalidArgument when
// a type is wrong or a pointer is missing.
absl::Status ParametersHash(const Exec& exec, const ParametersHashArgs& args);

}  // namespace nsa

// The same on a GPU (parameters_hash.cu); the function above has checked the arguments.
namespace nsa::cuda {

absl::Status ParametersHash(const Exec& exec, const ParametersHashArgs& args);

}  // namespace nsa::cuda
