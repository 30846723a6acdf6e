// How every kernel begins. A kernel may be launched before the kernel in front of it on its stream
// has ended (programmatic dependent launch, compute capability 9.0 and newer): its thread blocks
// then move in as those of the other kernel move out, and what it does first, such as the set-up of
// shared memory, takes no time of its own.
//
//   __global__ void SomeKernel(Begin begin, const float* x, …) {
//     …                           // parameters, registers and shared memory only
//     begin.WaitForPrevious();    // before the first access to global memory, in every thread
//
// Why this is safe:
//   - The wait ends when the kernel in front has ended and all its writes are visible, not when it
//     has let this one start. So the order of any two neighbours on a stream is the order without
//     overlap.
//   - A kernel ends only after its own wait has, so everything in front of its neighbour has ended
//     too. This needs the wait in EVERY kernel of Launch(), on every path of a thread block through
//     it, also where a thread has nothing to do: a grid that ends without waiting could end before
//     the kernel in front of it. tests/kernels/cuda/wait_first.py checks the machine code.
//   - A kernel lets the next one start after its own wait, so at most one kernel is ahead on a
//     stream, and the thread blocks that wait never keep those out that they wait for: all thread
//     blocks of a kernel have begun before the next one's may.
//   - Everything else keeps its full order: kernels of cuBLASLt and NCCL, copies and memsets are
//     launched without the attribute and begin when all work in front of them has ended. A kernel
//     behind a copy or a memset begins when that has ended, as CUDA allows overlap between two
//     kernels only. An event (Fork(), Join(), the sums over the ranks) is recorded when the work in
//     front of it has ended.
//   - Nothing is read before the wait, not even weights, because a step that updates them may be in
//     front on the stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/mark.h"

namespace nsa::cuda {

// The first parameter of every kernel; filled by Launch().
struct Begin {
  PendingMark mark;
  bool next_may_start;  // see LaunchShape

  __device__ __forceinline__ void WaitForPrevious() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
    if (next_may_start) asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
    if (mark.word != nullptr && blockIdx.x == 0 && threadIdx.x == 0) WriteMark();
  }

 private:
  __device__ __forceinline__ void WriteMark() const {
    if (mark.nanos != nullptr) {
      int64_t now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      asm volatile("st.relaxed.sys.global.u64 [%0], %1;\n" ::"l"(mark.nanos), "l"(now) : "memory");
    }
    // A store of system scope: the host sees it while the kernel runs.
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;\n" ::"l"(mark.word), "r"(mark.value)
                 : "memory");
  }
};

}  // namespace nsa::cuda
