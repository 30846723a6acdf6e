// Products of a warp group (128 threads, 64 rows) on Hopper's matrix unit, for tiles of 64, 128 or
// 192 columns.
//
// A tile of such a width (util.cuh) that begins at a multiple of 1,024 bytes consists of panels of
// 64 columns in the layout of wgmma's 128-byte swizzle, so mma.sync and wgmma use the same tiles.
// Accumulators and A fragments also have the layout of mma.sync: warp w of the group has rows 16w …
// 16w + 15. Only sm_90a code has these instructions; in other code kByWarpGroup is false and the
// functions are not compiled.
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
constexpr bool kByWarpGroup = kHasWgmma&& kWidth % 64 == 0;

constexpr int kGroupRows = 64;
constexpr int kTileAlignment = 1024;

__device__ __forceinline__ void FenceTiles() {
#ifdef NSA_WGMMA
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

#ifdef NSA_WGMMA

// The wgmma descriptor of a tile's first panel, with 128-byte swizzle: rows of 128 bytes, groups of
// eight rows 16 · kWidth bytes apart.
template <int kWidth>
__device__ __forceinline__ uint64_t Descriptor(const bf16* tile) {
  return (uint64_t{SharedAddress(tile)} >> 4) | (uint64_t{1} << 16) | (uint64_t{kWidth} << 32) |
         (uint64_t{1} << 62);
}
// A descriptor moved by `step` units of 16 bytes. The address is in its lower half, from which
// nothing is carried: the upper half stays a constant for the compiler.
__device__ __forceinline__ uint64_t Moved(uint64_t descriptor, uint32_t step) {
  const uint32_t address = static_cast<uint32_t>(descriptor) + step;
  return (descriptor & ~uint64_t{0xffffffff}) | address;
}
// By how much to move a descriptor for the panel to the right, ...
constexpr uint32_t kPanelStep = 64;
// ... for the columns from 16 · step on, ...
__device__ constexpr uint32_t ColumnStep(int step) { return step / 4 * kPanelStep + step % 4 * 2; }
// ... and for the rows 16 further down.
template <int kWidth>
constexpr uint32_t kRowStep = 2 * kWidth;

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
template <int kTiles>
__device__ __forceinline__ void Pin(float (&c)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[n][e])::"memory");
  }
}

#define NSA_TILE(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define NSA_4_TILES(c, n) \
  NSA_TILE(c, n), NSA_TILE(c, (n) + 1), NSA_TILE(c, (n) + 2), NSA_TILE(c, (n) + 3)
#define NSA_16_NAMES "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NSA_32_NAMES NSA_16_NAMES ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"

// c[64 × 64] (+)= a[64 × 16] · b[64 × 16]ᵀ, both from shared memory.
__device__ __forceinline__ void ProductShared(float (&c)[8][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NSA_32_NAMES
      "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : NSA_4_TILES(c, 0), NSA_4_TILES(c, 4)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// c[64 × 32] (+)= a[64 × 16] · b[32 × 16]ᵀ, both from shared memory.
__device__ __forceinline__ void ProductShared(float (&c)[4][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NSA_16_NAMES
      "}, %16, %17, p, 1, 1, 0, 0;\n}\n"
      : NSA_4_TILES(c, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// The columns of panel kPanel of c[64 × 8·kTiles] += a[64 × 16] · b[16 × 64], a in registers, b in
// shared memory row by row.
template <int kPanel, int kTiles>
__device__ __forceinline__ void ProductRegisters(float (&c)[kTiles][4], const uint32_t (&a)[4],
                                                 uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NSA_32_NAMES
      "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}\n"
      : NSA_4_TILES(c, 8 * kPanel), NSA_4_TILES(c, 8 * kPanel + 4)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The columns of panel kPanel of c[64 × 8·kTiles] (+)= a[16 × 64]ᵀ · b[16 × 64], both in shared
// memory row by row.
template <int kPanel, int kTiles>
__device__ __forceinline__ void ProductByColumn(float (&c)[kTiles][4], uint64_t a, uint64_t b,
                                                bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NSA_32_NAMES
      "}, %32, %33, p, 1, 1, 1, 1;\n}\n"
      : NSA_4_TILES(c, 8 * kPanel), NSA_4_TILES(c, 8 * kPanel + 4)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

#undef NSA_TILE
#undef NSA_4_TILES
#undef NSA_16_NAMES
#undef NSA_32_NAMES

// Enqueues c = a · bᵀ over kWidth columns, 8·kTiles rows of b; `a` points to the group's first row.
template <int kWidth, int kTiles>
__device__ __forceinline__ void EnqueueByRow(float (&c)[kTiles][4], const bf16* a, const bf16* b) {
  const uint64_t a_tile = Descriptor<kWidth>(a), b_tile = Descriptor<kWidth>(b);
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    ProductShared(c, Moved(a_tile, ColumnStep(step)), Moved(b_tile, ColumnStep(step)), step > 0);
  }
}

// Enqueues sum[64 × kWidth] += c · (rows 16·step … 16·step + 15 of a tile), where c is a fragment
// of 16 columns and `tile` the tile's descriptor.
template <int kWidth>
__device__ __forceinline__ void EnqueueAccumulate(float (&sum)[kWidth / 8][4],
                                                  const uint32_t (&c)[4], uint64_t tile, int step) {
  const uint64_t rows = Moved(tile, step * kRowStep<kWidth>);
  ProductRegisters<0>(sum, c, rows);
  if constexpr (kWidth > 64) ProductRegisters<1>(sum, c, Moved(rows, kPanelStep));
  if constexpr (kWidth > 128) ProductRegisters<2>(sum, c, Moved(rows, 2 * kPanelStep));
}

// Enqueues c[64 × kWidth] = aᵀ · b for a Tile<64> `a` and a tile `b`, of 64 rows each.
template <int kWidth>
__device__ __forceinline__ void EnqueueByColumn(float (&c)[kWidth / 8][4], const bf16* a,
                                                const bf16* b) {
  static_assert(kWidth <= 128);
  const uint64_t a_tile = Descriptor<64>(a), b_tile = Descriptor<kWidth>(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint64_t a_rows = Moved(a_tile, step * kRowStep<64>);
    const uint64_t b_rows = Moved(b_tile, step * kRowStep<kWidth>);
    ProductByColumn<0>(c, a_rows, b_rows, step > 0);
    if constexpr (kWidth == 128) ProductByColumn<1>(c, a_rows, Moved(b_rows, kPanelStep), step > 0);
  }
}

#endif  // NSA_WGMMA

}  // namespace nsa::cuda
