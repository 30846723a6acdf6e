// Products of a warp group (128 threads, 64 rows) on Hopper's matrix unit, for tiles of 64 columns.
//
// A Tile<64> (util.cuh) that begins at a multiple of 1,024 bytes has the layout of wgmma's 128-byte
// swizzle, so mma.sync and wgmma use the same tiles. Accumulators and A fragments also have the
// layout of mma.sync: warp w of the group has rows 16w … 16w + 15. Only sm_90a code has these
// instructions; in other code kByWarpGroup is false and the functions are not compiled.
//
// For tiles written by cp.async or ordinary stores, every writing thread must call FenceTiles()
// before the barrier that precedes the product.
#pragma once

#include "kernels/cuda/util.cuh"

namespace nsa::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define NSA_WGMMA 1
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

template <int kWidth>
constexpr bool kByWarpGroup = kHasWgmma&& kWidth == 64;

constexpr int kGroupRows = 64;
constexpr int kTileAlignment = 1024;

__device__ __forceinline__ void FenceTiles() {
#ifdef NSA_WGMMA
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

#ifdef NSA_WGMMA

// The wgmma descriptor of a tile with 128-byte swizzle: rows of 128 bytes, groups of eight rows
// 1,024 bytes apart.
__device__ __forceinline__ uint64_t Descriptor(const bf16* tile) {
  return (uint64_t{SharedAddress(tile)} >> 4) | (uint64_t{1} << 16) | (uint64_t{64} << 32) |
         (uint64_t{1} << 62);
}
constexpr uint64_t kColumnStep = 2;  // 16 columns of a row, in units of 16 bytes
constexpr uint64_t kRowStep = 128;   // 16 rows

__device__ __forceinline__ void BeginProducts() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits until at most `kPending` of the newest groups are still in flight.
template <int kPending = 0>
__device__ __forceinline__ void WaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads and writes of `c` across this point, since it does not know
// that the products run asynchronously.
__device__ __forceinline__ void Pin(float (&c)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[n][e])::"memory");
  }
}

#define NSA_ROW(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define NSA_ACCUMULATORS(c)                                                                 \
  NSA_ROW(c, 0), NSA_ROW(c, 1), NSA_ROW(c, 2), NSA_ROW(c, 3), NSA_ROW(c, 4), NSA_ROW(c, 5), \
      NSA_ROW(c, 6), NSA_ROW(c, 7)
#define NSA_ACCUMULATOR_NAMES                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31}"

// c[64 × 64] (+)= a[64 × 16] · b[64 × 16]ᵀ, both from shared memory.
__device__ __forceinline__ void ProductShared(float (&c)[8][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " NSA_ACCUMULATOR_NAMES
      ", %32, %33, p, 1, 1, 0, 0;\n}\n"
      : NSA_ACCUMULATORS(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// c[64 × 64] += a[64 × 16] · b[16 × 64], a in registers, b in shared memory row by row.
__device__ __forceinline__ void ProductRegisters(float (&c)[8][4], const uint32_t (&a)[4],
                                                 uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " NSA_ACCUMULATOR_NAMES
      ", {%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}\n"
      : NSA_ACCUMULATORS(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef NSA_ROW
#undef NSA_ACCUMULATORS
#undef NSA_ACCUMULATOR_NAMES

// Enqueues c = a · bᵀ over 64 columns; `a` points to the group's first row.
__device__ __forceinline__ void EnqueueByRow(float (&c)[8][4], const bf16* a, const bf16* b) {
  const uint64_t a_tile = Descriptor(a), b_tile = Descriptor(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    ProductShared(c, a_tile + step * kColumnStep, b_tile + step * kColumnStep, step > 0);
  }
}

// Enqueues sum += c · tile for a tile of 64 rows; c is given as fragments.
__device__ __forceinline__ void EnqueueAccumulate(float (&sum)[8][4], const uint32_t (&c)[4][4],
                                                  const bf16* tile) {
  const uint64_t b = Descriptor(tile);
#pragma unroll
  for (int step = 0; step < 4; ++step) ProductRegisters(sum, c[step], b + step * kRowStep);
}

#endif  // NSA_WGMMA

}  // namespace nsa::cuda
