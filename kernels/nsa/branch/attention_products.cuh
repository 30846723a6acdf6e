// The matrix products of the attention kernels: by warp groups in sm_90a code with heads that are
// 64 wide or more, else by warps. Either way a warp holds 16 rows of a result in the layout of
// mma.sync, and all warps of a thread block must call together.
#pragma once

#include "kernels/cuda/wgmma.cuh"

namespace nsa::cuda {

template <int kColumns>
using Rows16 = float[kColumns / 8][4];  // 16 rows of a warp, kColumns columns

// Whether a product with kRows rows of a tile as its second operand is done by a warp group.
template <int kWidth, int kRows>
constexpr bool kGroupProduct = kByWarpGroup<kWidth> && (kRows == 64 || kRows == 32);

template <int kColumns>
__device__ __forceinline__ void Clear(Rows16<kColumns>& c) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[n][e] = 0;
  }
}

// c[16 × kRows] = the warp's rows of a_tile · tileᵀ, done by a warp.
template <int kWidth, int kRows>
__device__ __forceinline__ void WarpByRow(Rows16<kRows>& c, const bf16* a_tile, const bf16* tile,
                                          int warp, int lane) {
  Clear<kRows>(c);
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    uint32_t a[4];
    LoadA<kWidth>(a, a_tile, warp * 16, step, lane);
#pragma unroll
    for (int pair = 0; pair < kRows / 16; ++pair) {
      uint32_t b[4];
      LoadBByRow<kWidth>(b, tile, pair * 16, step, lane);
      Mma(c[2 * pair], a, b[0], b[1]);
      Mma(c[2 * pair + 1], a, b[2], b[3]);
    }
  }
}

// sum[16 × kWidth] += c[16 × kRows] · tile, done by a warp.
template <int kWidth, int kRows>
__device__ __forceinline__ void WarpAccumulate(Rows16<kWidth>& sum, const Rows16<kRows>& c,
                                               const bf16* tile, int lane) {
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) {
    uint32_t a[4];
    AccumulatorAsA(a, c[2 * step], c[2 * step + 1]);
#pragma unroll
    for (int pair = 0; pair < kWidth / 16; ++pair) {
      uint32_t b[4];
      LoadBByColumn<kWidth>(b, tile, step * 16, pair, lane);
      Mma(sum[2 * pair], a, b[0], b[1]);
      Mma(sum[2 * pair + 1], a, b[2], b[3]);
    }
  }
}

// Calls make(step) for each group of 16 columns of a product with kRows columns.
template <int kRows, class Make>
__device__ __forceinline__ void MakeAll(Make make) {
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) make(step);
}

#ifdef NSA_WGMMA
// The first tile row of the warp group that `warp` belongs to.
template <int kWidth>
__device__ __forceinline__ const bf16* GroupTile(const bf16* tile, int warp) {
  return tile + (warp >> 2) * kGroupRows * kWidth;
}
template <int kRows>
__device__ __forceinline__ void AsFragments(uint32_t (&a)[kRows / 16][4], const Rows16<kRows>& c) {
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) {
    AccumulatorAsA(a[step], c[2 * step], c[2 * step + 1]);
  }
}
#endif

// c = the warp's rows of a · tileᵀ. Calls meanwhile() once: with warp groups while c is being
// computed, else before.
template <int kWidth, int kRows, class Meanwhile>
__device__ __forceinline__ void ByRow(Rows16<kRows>& c, const bf16* a, const bf16* tile, int warp,
                                      int lane, Meanwhile meanwhile) {
  if constexpr (kGroupProduct<kWidth, kRows>) {
#ifdef NSA_WGMMA
    Pin(c);
    BeginProducts();
    EnqueueByRow<kWidth>(c, GroupTile<kWidth>(a, warp), tile);
    CommitProducts();
    meanwhile();
    WaitProducts();
    Pin(c);
#endif
  } else {
    meanwhile();
    WarpByRow<kWidth, kRows>(c, a, tile, warp, lane);
  }
}

// c = the warp's rows of aᵀ · tile, where both have 64 rows and a is a Tile<64>; meanwhile() as
// above. Only warp groups do this product.
template <int kWidth, class Meanwhile>
__device__ __forceinline__ void ByColumn(Rows16<kWidth>& c, const bf16* a, const bf16* tile,
                                         Meanwhile meanwhile) {
#ifdef NSA_WGMMA
  Pin(c);
  BeginProducts();
  EnqueueByColumn<kWidth>(c, a, tile);
  CommitProducts();
  meanwhile();
  WaitProducts();
  Pin(c);
#endif
}

// x = the warp's rows of a · bᵀ, over kWidth columns, and y = the warp's rows of c · dᵀ, over
// kWidthY columns. use_x() is called once x is
// complete; with warp groups this is while y is still being computed. meanwhile() as above.
template <int kWidth, int kWidthY, int kRows, class Meanwhile, class UseX>
__device__ __forceinline__ void TwoByRow(Rows16<kRows>& x, const bf16* a, const bf16* b,
                                         Rows16<kRows>& y, const bf16* c, const bf16* d, int warp,
                                         int lane, Meanwhile meanwhile, UseX use_x) {
  static_assert(kByWarpGroup<kWidth> == kByWarpGroup<kWidthY>);
  if constexpr (kGroupProduct<kWidth, kRows>) {
#ifdef NSA_WGMMA
    Pin(x);
    Pin(y);
    BeginProducts();
    EnqueueByRow<kWidth>(x, GroupTile<kWidth>(a, warp), b);
    CommitProducts();
    EnqueueByRow<kWidthY>(y, GroupTile<kWidthY>(c, warp), d);
    CommitProducts();
    meanwhile();
    WaitProducts<1>();
    Pin(x);
    use_x();
    WaitProducts();
    Pin(y);
#endif
  } else {
    meanwhile();
    WarpByRow<kWidth, kRows>(x, a, b, warp, lane);
    WarpByRow<kWidthY, kRows>(y, c, d, warp, lane);
    use_x();
  }
}

// sum += c · tile.
template <int kWidth, int kRows>
__device__ __forceinline__ void Accumulate(Rows16<kWidth>& sum, const Rows16<kRows>& c,
                                           const bf16* tile, int lane) {
  if constexpr (kGroupProduct<kWidth, kRows>) {
#ifdef NSA_WGMMA
    uint32_t a[kRows / 16][4];
    AsFragments<kRows>(a, c);
    Pin(sum);
    BeginProducts();
    const uint64_t b = Descriptor<kWidth>(tile);
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) EnqueueAccumulate<kWidth>(sum, a[step], b, step);
    CommitProducts();
    WaitProducts();
    Pin(sum);
#endif
  } else {
    WarpAccumulate<kWidth, kRows>(sum, c, tile, lane);
  }
}

// The same, where make(step) computes 16 columns of c: c[2·step] and c[2·step + 1]. With warp
// groups the matrix unit multiplies these while the next 16 are computed.
template <int kWidth, int kRows, class Make>
__device__ __forceinline__ void Accumulate(Rows16<kWidth>& sum, const Rows16<kRows>& c,
                                           const bf16* tile, int lane, Make make) {
  if constexpr (kGroupProduct<kWidth, kRows>) {
#ifdef NSA_WGMMA
    uint32_t a[kRows / 16][4];
    const uint64_t b = Descriptor<kWidth>(tile);
    Pin(sum);
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      make(step);
      AccumulatorAsA(a[step], c[2 * step], c[2 * step + 1]);
      BeginProducts();
      EnqueueAccumulate<kWidth>(sum, a[step], b, step);
    }
    CommitProducts();
    WaitProducts();
    Pin(sum);
#endif
  } else {
    MakeAll<kRows>(make);
    WarpAccumulate<kWidth, kRows>(sum, c, tile, lane);
  }
}

// x += a · b, of kWidth columns, and y += c · d, of kWidthY columns, where make(step) computes 16
// columns of a and of c. Calls made() once all columns are there; with warp groups before x and y
// are complete.
template <int kWidth, int kWidthY, int kRows, class Make, class Made>
__device__ __forceinline__ void TwoAccumulate(Rows16<kWidth>& x, const Rows16<kRows>& a,
                                              const bf16* b, Rows16<kWidthY>& y,
                                              const Rows16<kRows>& c, const bf16* d, int lane,
                                              Make make, Made made) {
  static_assert(kByWarpGroup<kWidth> == kByWarpGroup<kWidthY>);
  if constexpr (kGroupProduct<kWidth, kRows>) {
#ifdef NSA_WGMMA
    const uint64_t b_tile = Descriptor<kWidth>(b), d_tile = Descriptor<kWidthY>(d);
    uint32_t a_fragments[kRows / 16][4], c_fragments[kRows / 16][4];
    Pin(x);
    Pin(y);
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      make(step);
      AccumulatorAsA(a_fragments[step], a[2 * step], a[2 * step + 1]);
      AccumulatorAsA(c_fragments[step], c[2 * step], c[2 * step + 1]);
      BeginProducts();
      EnqueueAccumulate<kWidth>(x, a_fragments[step], b_tile, step);
      EnqueueAccumulate<kWidthY>(y, c_fragments[step], d_tile, step);
    }
    CommitProducts();
    made();
    WaitProducts();
    Pin(x);
    Pin(y);
#endif
  } else {
    MakeAll<kRows>(make);
    made();
    WarpAccumulate<kWidth, kRows>(x, a, b, lane);
    WarpAccumulate<kWidthY, kRows>(y, c, d, lane);
  }
}

}  // namespace nsa::cuda
