// Device functions that the kernels are built from: asynchronous copies, swizzled shared-memory
// tiles, warp matrix products, reductions. All of it is sm_80 code (cp.async, ldmatrix, mma.sync)
// and runs on every later GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/occupancy.h"

namespace nsa::cuda {

using bf16 = __nv_bfloat16;

constexpr int kWarp = 32;

// A number that is the same for all lanes of the warp, which all call. The compiler then knows:
// what follows from it is kept in uniform registers, which the products of warp groups need.
__device__ __forceinline__ int Uniform(int value) { return __reduce_max_sync(0xffffffffu, value); }

// The number of the thread's warp in its block.
__device__ __forceinline__ int WarpIndex() {
  return Uniform(static_cast<int>(threadIdx.x / kWarp));
}

__host__ __device__ constexpr int CeilDiv(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int64_t CeilDiv64(int64_t a, int64_t b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int RoundUp(int a, int b) { return CeilDiv(a, b) * b; }

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory asynchronously. Writes zeros when !valid; the source is then not
// read and may be any address.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global),
               "r"(bytes));
}
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool valid) {
  CopyAsync16(SharedAddress(shared), global, valid);
}
// The same for 8 bytes.
__device__ __forceinline__ void CopyAsync8(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n" ::"r"(SharedAddress(shared)),
               "l"(global));
}
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::); }
// Waits until at most `kPending` of the newest groups are still in flight.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

// A tile in shared memory with rows of kWidth bf16. The 16-byte chunks are permuted within a row so
// that the eight rows that one ldmatrix phase reads are in different banks. Rows of 128 and 192
// columns are stored as panels of 64 columns: eight rows of the left panel (1,024 bytes), the same
// rows of the next panel, and so on, then the next eight rows. A panel thus has the layout that
// wgmma reads.
constexpr int kPanelColumns = 64;
constexpr int kPanel = 8 * kPanelColumns;  // elements from a panel to the next

template <int kWidth>
struct Tile {
  static constexpr int kChunks = kWidth / 8;
  static_assert(kWidth == 16 || kWidth == 32 || (kWidth % 64 == 0 && kWidth <= 192));

  // Where the 16-byte chunk `chunk` of row `row` begins, in elements from the tile's first.
  __device__ __forceinline__ static int Offset(int row, int chunk) {
    if constexpr (kChunks > 8) {
      return (row >> 3) * (8 * kWidth) + (chunk >> 3) * kPanel + (row & 7) * 64 +
             ((chunk & 7) ^ (row & 7)) * 8;
    } else {
      return row * kWidth + Swizzle(row, chunk) * 8;
    }
  }
  // The 16-byte chunk `chunk` of row `row`.
  __device__ __forceinline__ static bf16* At(bf16* tile, int row, int chunk) {
    return tile + Offset(row, chunk);
  }
  __device__ __forceinline__ static const bf16* At(const bf16* tile, int row, int chunk) {
    return tile + Offset(row, chunk);
  }

 private:
  __device__ __forceinline__ static int Swizzle(int row, int chunk) {
    if constexpr (kChunks == 8) {
      return chunk ^ (row & 7);
    } else if constexpr (kChunks == 4) {
      return chunk ^ ((row >> 1) & 3);
    } else {
      return chunk ^ ((row >> 2) & 1);
    }
  }
};

__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row));
}
__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], const void* row) {
  LoadMatrix4(r, SharedAddress(row));
}
__device__ __forceinline__ void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row)));
}

// c[16×8] += a[16×16] · b[16×8], fp32 accumulation. Layout (PTX m16n8k16): thread lane holds c rows
// lane/4 and lane/4 + 8, columns 2·(lane%4) and + 1.
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A fragment: rows [row, row + 16), columns [16·step, + 16) of a row-major tile.
template <int kWidth>
__device__ __forceinline__ void LoadA(uint32_t (&a)[4], const bf16* tile, int row, int step,
                                      int lane) {
  LoadMatrix4(a, Tile<kWidth>::At(tile, row + (lane & 15), 2 * step + (lane >> 4)));
}

// B fragments of two neighbouring n-tiles for c += a · tileᵀ: n runs over tile rows [row, row +
// 16), k over columns [16·step, + 16). b[0], b[1] belong to rows row … row+7, b[2], b[3] to rows
// row+8 … row+15.
template <int kWidth>
__device__ __forceinline__ void LoadBByRow(uint32_t (&b)[4], const bf16* tile, int row, int step,
                                           int lane) {
  LoadMatrix4(b, Tile<kWidth>::At(tile, row + (lane & 7) + ((lane >> 4) << 3),
                                  2 * step + ((lane >> 3) & 1)));
}

// B fragments of two neighbouring n-tiles for c += a · tile: k runs over tile rows [row, row + 16),
// n over columns [16·pair, + 16).
template <int kWidth>
__device__ __forceinline__ void LoadBByColumn(uint32_t (&b)[4], const bf16* tile, int row, int pair,
                                              int lane) {
  LoadMatrix4Transposed(b, Tile<kWidth>::At(tile, row + (lane & 15), 2 * pair + (lane >> 4)));
}

// Two fp32 as one register of two bf16, `low` in the low half, rounded to nearest even.
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The accumulator tiles of columns [16·step, + 16) of a 16-row product as an A fragment of the next
// product.
__device__ __forceinline__ void AccumulatorAsA(uint32_t (&a)[4], const float (&left)[4],
                                               const float (&right)[4]) {
  a[0] = Pack(left[0], left[1]);
  a[1] = Pack(left[2], left[3]);
  a[2] = Pack(right[0], right[1]);
  a[3] = Pack(right[2], right[3]);
}

// 2^x within 2 units in the last place; results below 2^-126 are 0, 2^-inf is 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Maximum (and below, sum) over the four lanes that share a row of an accumulator tile.
__device__ __forceinline__ float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float QuadSum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Reductions over a warp; every lane gets the result. The order of additions is a fixed tree, so
// the sum is repeatable.
__device__ __forceinline__ float WarpSum(float value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}
__device__ __forceinline__ float WarpMax(float value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// True in the last thread block of the grid that calls this, for all its threads, which then see
// what all thread blocks wrote before their calls (read it by __ldcg()). All threads of every
// thread block must call it once. *arrived must be 0 when the kernel begins.
__device__ __forceinline__ bool IsLastBlock(unsigned int* arrived) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(arrived, 1u) == gridDim.x - 1;
  __syncthreads();
  __threadfence();
  return last;
}

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

}  // namespace nsa::cuda
