// How many thread blocks share a multiprocessor, as far as shared memory decides. All numbers are
// bytes. Pure.
#pragma once

namespace nsa::cuda {

// What a thread block may use on an A100, and what its multiprocessors have (CUDA's programming
// guide, compute capability 8.0). Kernels for heads wider than 64 need no more than the former, but
// in sm_90a code.
constexpr int kSharedOfA100 = 163 * 1024;
// And of a thread block of the GPUs that have least: RTX 3090 and 4090, A10, L4, L40S, RTX PRO
// 6000.
constexpr int kSharedOfSmallest = 99 * 1024;
constexpr int kSharedOfA100Multiprocessor = 164 * 1024;
constexpr int kSharedOfHopperMultiprocessor = 228 * 1024;  // compute capability 9.0

// What CUDA takes for each thread block besides, and the unit in which it gives out.
constexpr int kSharedOfDriver = 1024;
constexpr int kSharedUnit = 128;

// Thread blocks that use `shared` bytes each, on a multiprocessor that has `all`.
constexpr int BlocksIn(int all, int shared) { return all / (shared + kSharedOfDriver); }

// The least that a thread block has to use so that only `blocks` of them, one or more, share a
// multiprocessor that has `all`.
constexpr int LeastFor(int blocks, int all) {
  return (all / (blocks + 1) / kSharedUnit + 1) * kSharedUnit - kSharedOfDriver;
}

}  // namespace nsa::cuda
