// Hopper's copy engine (TMA): one thread copies a box of a tensor from global to shared memory. And
// the barriers in shared memory (mbarrier) by which threads wait for it and for each other.
//
// A TensorMap describes the tensor and the box; the host makes it with MapOf() (tensor_map.h)
// and passes it as a __grid_constant__ parameter. Elements of a box outside the tensor become zero.
// A box arrives as rows of a Tile<64> (util.cuh, wgmma.cuh) that begins at a multiple of 1,024
// bytes; it may begin at any row, since the order of chunks follows from the address. Products of a
// warp group may read it once the barrier is complete, without FenceTiles().
//
// Only sm_90a code has copies by box; in other code LoadBox() does nothing and must not be called.
#pragma once

#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace nsa::cuda {

__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
}
// Makes barriers that this thread has initialized known to the copy engine. Then the threads meet.
__device__ __forceinline__ void FenceBarriers() {
#ifdef NSA_WGMMA
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(SharedAddress(barrier)) : "memory");
}
// Arrives once all cp.async copies that the thread has started so far are complete.
__device__ __forceinline__ void ArriveAfterCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(SharedAddress(barrier))
               : "memory");
}
// Arrives, and lets the barrier wait for this many bytes of boxes too.
__device__ __forceinline__ void ArriveExpecting(uint64_t* barrier, int bytes) {
#ifdef NSA_WGMMA
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
#endif
}
// Waits for the barrier's use number `use`, counted from 0.
__device__ __forceinline__ void AwaitUse(uint64_t* barrier, int use) {
#ifdef NSA_WGMMA
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}\n" ::"r"(
          SharedAddress(barrier)),
      "r"(use & 1)
      : "memory");
#endif
}

// True for one lane of the warp; all lanes must call it. For what one thread is to do.
__device__ __forceinline__ bool Elected() {
#ifdef NSA_WGMMA
  int elected;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.b32 %0, 1, 0, one;\n}\n"
               : "=r"(elected));
  return elected != 0;
#else
  return threadIdx.x % kWarp == 0;
#endif
}

// Starts the copy of the box that begins at this row and head of the map's tensor [batch, rows,
// heads, width]. Its bytes count for the barrier. The rows of the tile are the heads of the first
// row, then those of the next.
__device__ __forceinline__ void LoadBox(void* to, const TensorMap& map, int batch, int row,
                                        int head, uint64_t* barrier) {
#ifdef NSA_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(0), "r"(head), "r"(row), "r"(batch), "r"(SharedAddress(barrier))
      : "memory");
#endif
}

}  // namespace nsa::cuda
