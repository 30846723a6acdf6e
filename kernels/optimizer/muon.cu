// Muon on CUDA, around the products: one kernel each for the momentum, the normalized matrix, the
// sums of the rows, the factors of the rows and the update. All are limited by memory bandwidth:
// together 36 bytes per element. The values that change from step to step are read from device
// memory, so that a CUDA graph can contain the launches.
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/util.cuh"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/muon.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;  // rows and columns of a tile that is transposed in shared memory

// The matrices of a batch: all [p, q] or its transpose.
struct Batch {
  int64_t offset[kMuonMostMatrices];
  uint64_t tall;  // bit i: matrix i is [q, p], and transposed in x and y
  int p, q;

  __device__ bool Tall(int i) const { return (tall >> i & 1) != 0; }
  __device__ int Rows(int i) const { return Tall(i) ? q : p; }
  __device__ int Columns(int i) const { return Tall(i) ? p : q; }
};

// Tile `index` of a matrix with that many columns, row by row.
struct Tile {
  int row0, column0;
  __device__ Tile(int index, int columns) {
    const int across = (columns + kTile - 1) / kTile;
    row0 = index / across * kTile, column0 = index % across * kTile;
  }
};

struct Pointers {
  float *parameters, *m, *v;
  const float* gradients;
  bf16* half;  // may be null
  const AdamWStep* step;
  AdamWStep host;  // used where `step` is null
  float beta1, beta2, weight_decay, lr_factor;

  bf16 *x, *y;
  double* sums;
  float *row_sums, *factors;

  __device__ AdamWStep Step() const { return step == nullptr ? host : *step; }
  // U of an element whose momentum has been updated.
  __device__ float Ahead(int64_t at, float gradient_scale) const {
    return beta1 * m[at] + (1 - beta1) * (gradients[at] * gradient_scale);
  }
};

// Thread block (s, i): the s-th of kMuonSums parts of matrix i.
__global__ void __launch_bounds__(kThreads)
    MomentumKernel(Begin begin, Pointers p, const __grid_constant__ Batch batch) {
  __shared__ double scratch[kThreads];
  begin.WaitForPrevious();
  const AdamWStep step = p.Step();
  const int i = blockIdx.y;
  const int64_t quads = int64_t{1} * batch.p * batch.q / 4;
  const auto* g4 = reinterpret_cast<const float4*>(p.gradients + batch.offset[i]);
  auto* m4 = reinterpret_cast<float4*>(p.m + batch.offset[i]);
  double sum = 0;
  for (int64_t at = blockIdx.x * kThreads + threadIdx.x; at < quads; at += kMuonSums * kThreads) {
    const float4 g = g4[at];
    float4 m = m4[at];
    const float gs[4] = {g.x, g.y, g.z, g.w};
    float* const ms[4] = {&m.x, &m.y, &m.z, &m.w};
    float squares = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float rest = (1 - p.beta1) * (gs[k] * step.gradient_scale);
      *ms[k] = p.beta1 * *ms[k] + rest;
      const float u = p.beta1 * *ms[k] + rest;
      squares += u * u;
    }
    if (step.skip == 0) m4[at] = m;
    sum += squares;
  }
  sum = BlockSum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) p.sums[i * kMuonSums + blockIdx.x] = sum;
}

// Thread block (tile, matrix): x ← U / ‖U‖.
__global__ void __launch_bounds__(kThreads)
    NormalizeKernel(Begin begin, Pointers p, const __grid_constant__ Batch batch) {
  __shared__ float tile[kTile][kTile + 1];
  __shared__ float shared_inverse;
  begin.WaitForPrevious();
  const int i = blockIdx.y, rows = batch.Rows(i), columns = batch.Columns(i);
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  const auto [row0, column0] = Tile(blockIdx.x, columns);
  const float scale = p.Step().gradient_scale;
  if (warp == 0) {
    const double* const sums = p.sums + i * kMuonSums;
    double sum = sums[lane] + sums[lane + 32];
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane == 0) shared_inverse = static_cast<float>(1 / (sqrt(sum) + 1e-7));
  }
  static_assert(kMuonSums == 64);
  __syncthreads();
  const float inverse = shared_inverse;
  const bool tall = batch.Tall(i);
  bf16* const x = p.x + int64_t{1} * i * batch.p * batch.q;
  for (int r = warp; r < kTile; r += kThreads / kTile) {
    const int row = row0 + r, column = column0 + lane;
    if (row >= rows || column >= columns) continue;
    const int64_t in_matrix = int64_t{1} * row * columns + column;
    const float u = p.Ahead(batch.offset[i] + in_matrix, scale) * inverse;
    if (tall) {
      tile[lane][r] = u;
    } else {
      x[in_matrix] = __float2bfloat16(u);
    }
  }
  if (!tall) return;
  __syncthreads();
  for (int c = warp; c < kTile; c += kThreads / kTile) {
    const int row = row0 + lane, column = column0 + c;
    if (row >= rows || column >= columns) continue;
    x[int64_t{1} * column * rows + row] = __float2bfloat16(tile[c][lane]);
  }
}

// Thread block (tile of rows, matrix): Σ O² of each row.
__global__ void __launch_bounds__(kThreads)
    RowSumsKernel(Begin begin, Pointers p, const __grid_constant__ Batch batch) {
  __shared__ float parts[kThreads / kTile][kTile];
  begin.WaitForPrevious();
  const int i = blockIdx.y, rows = batch.Rows(i), columns = batch.Columns(i);
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile, row0 = blockIdx.x * kTile;
  if (row0 >= rows) return;
  const bf16* const o = p.y + int64_t{1} * i * batch.p * batch.q;
  float* const sums = p.row_sums + int64_t{1} * i * batch.q;
  if (batch.Tall(i)) {  // a row is a column of o: a lane each, the warps take every eighth element
    float sum = 0;
    for (int c = warp; c < columns && row0 + lane < rows; c += kThreads / kTile) {
      const float value = __bfloat162float(o[int64_t{1} * c * rows + row0 + lane]);
      sum += value * value;
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || row0 + lane >= rows) return;
    sum = 0;
    for (int w = 0; w < kThreads / kTile; ++w) sum += parts[w][lane];
    sums[row0 + lane] = sum;
    return;
  }
  for (int row = row0 + warp; row < min(row0 + kTile, rows); row += kThreads / kTile) {
    float sum = 0;
    for (int c = lane; c < columns; c += kTile) {
      const float value = __bfloat162float(o[int64_t{1} * row * columns + c]);
      sum += value * value;
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane == 0) sums[row] = sum;
  }
}

// Thread block i: v of matrix i, and 0.2 √(rows · columns) / ‖Ô‖ / (√v_r + 1e-10) of each row.
__global__ void __launch_bounds__(kThreads)
    FactorsKernel(Begin begin, Pointers p, const __grid_constant__ Batch batch) {
  __shared__ double scratch[kThreads];
  begin.WaitForPrevious();
  const bool skip = p.Step().skip != 0;
  const int i = blockIdx.x, rows = batch.Rows(i), columns = batch.Columns(i);
  float* const v = p.v + batch.offset[i];
  const float* const sums = p.row_sums + int64_t{1} * i * batch.q;
  float* const factors = p.factors + int64_t{1} * i * batch.q;
  double norm = 0;
  for (int r = threadIdx.x; r < rows; r += kThreads) {
    const float variance = p.beta2 * v[r] + (1 - p.beta2) * (sums[r] / static_cast<float>(columns));
    if (!skip) v[r] = variance;
    const float factor = 1 / (sqrtf(variance) + 1e-10f);
    factors[r] = factor;
    norm += static_cast<double>(sums[r] * factor) * static_cast<double>(factor);
  }
  norm = BlockSum<kThreads>(norm, scratch);
  const double size = static_cast<double>(rows) * columns;
  const float scale = norm > 0 ? static_cast<float>(0.2 * sqrt(size / norm)) : 0.0f;
  for (int r = threadIdx.x; r < rows; r += kThreads) factors[r] *= scale;
}

// Thread block (tile, matrix): W.
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(Begin begin, Pointers p, const __grid_constant__ Batch batch) {
  __shared__ float tile[kTile][kTile + 1];
  begin.WaitForPrevious();
  const AdamWStep step = p.Step();
  const int i = blockIdx.y, rows = batch.Rows(i), columns = batch.Columns(i);
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  const auto [row0, column0] = Tile(blockIdx.x, columns);
  if (step.skip != 0) return;
  const bool tall = batch.Tall(i);
  const bf16* const o = p.y + int64_t{1} * i * batch.p * batch.q;
  if (tall) {
    for (int c = warp; c < kTile; c += kThreads / kTile) {
      const int row = row0 + lane, column = column0 + c;
      if (row >= rows || column >= columns) continue;
      tile[c][lane] = __bfloat162float(o[int64_t{1} * column * rows + row]);
    }
    __syncthreads();
  }
  const float lr = step.lr * p.lr_factor;
  const float* const factors = p.factors + int64_t{1} * i * batch.q;
  for (int r = warp; r < kTile; r += kThreads / kTile) {
    const int row = row0 + r, column = column0 + lane;
    if (row >= rows || column >= columns) continue;
    const int64_t in_matrix = int64_t{1} * row * columns + column;
    const int64_t at = batch.offset[i] + in_matrix;
    const float update = tall ? tile[lane][r] : __bfloat162float(o[in_matrix]);
    float weight = p.parameters[at];
    weight -= lr * (factors[row] * update + p.weight_decay * weight);
    p.parameters[at] = weight;
    if (p.half != nullptr) p.half[at] = __float2bfloat16(weight);
  }
}

Batch BatchOf(std::span<const MuonMatrix> matrices) {
  Batch batch{};
  const MuonShape shape = matrices[0].shape();
  batch.p = static_cast<int>(shape.p), batch.q = static_cast<int>(shape.q);
  for (size_t i = 0; i < matrices.size(); ++i) {
    batch.offset[i] = matrices[i].offset;
    if (matrices[i].tall()) batch.tall |= uint64_t{1} << i;
  }
  return batch;
}

absl::StatusOr<Pointers> PointersOf(const Exec& exec, const MuonArgs& args,
                                    const MuonScratch& scratch) {
  NSA_ASSIGN_OR_RETURN(void* const workspace, WorkspaceOf(exec, scratch.bytes, "muon"));
  auto* const bytes = static_cast<std::byte*>(workspace);
  return Pointers{.parameters = DataOf<float>(args.parameters),
                  .m = DataOf<float>(args.m),
                  .v = DataOf<float>(args.v),
                  .gradients = DataOf<float>(args.gradients),
                  .half = DataOf<bf16>(args.half),
                  .step = static_cast<const AdamWStep*>(args.device_step.data),
                  .host = {.lr = args.lr, .gradient_scale = args.gradient_scale},
                  .beta1 = args.beta1,
                  .beta2 = args.beta2,
                  .weight_decay = args.weight_decay,
                  .lr_factor = args.device_step.wanted() ? args.lr_factor : 1.0f,
                  .x = reinterpret_cast<bf16*>(bytes + scratch.x),
                  .y = reinterpret_cast<bf16*>(bytes + scratch.y),
                  .sums = reinterpret_cast<double*>(bytes + scratch.sums),
                  .row_sums = reinterpret_cast<float*>(bytes + scratch.row_sums),
                  .factors = reinterpret_cast<float*>(bytes + scratch.factors)};
}

// Thread blocks for the tiles of all matrices of the batch.
dim3 Tiles(const Batch& batch, size_t count) {
  return dim3(GridFor(batch.p, kTile) * GridFor(batch.q, kTile), static_cast<unsigned int>(count));
}

}  // namespace

absl::Status MuonMomentum(const Exec& exec, const MuonArgs& args,
                          std::span<const MuonMatrix> matrices, const MuonScratch& scratch) {
  NSA_ASSIGN_OR_RETURN(const Pointers p, PointersOf(exec, args, scratch));
  const Batch batch = BatchOf(matrices);
  NSA_RETURN_IF_ERROR(Launch(exec, "muon momentum", MomentumKernel,
                             {.grid = dim3(static_cast<unsigned int>(kMuonSums),
                                           static_cast<unsigned int>(matrices.size())),
                              .block = kThreads},
                             p, batch));
  return Launch(exec, "muon normalize", NormalizeKernel,
                {.grid = Tiles(batch, matrices.size()), .block = kThreads}, p, batch);
}

absl::Status MuonUpdate(const Exec& exec, const MuonArgs& args,
                        std::span<const MuonMatrix> matrices, const MuonScratch& scratch) {
  NSA_ASSIGN_OR_RETURN(const Pointers p, PointersOf(exec, args, scratch));
  const Batch batch = BatchOf(matrices);
  const auto count = static_cast<unsigned int>(matrices.size());
  NSA_RETURN_IF_ERROR(Launch(exec, "muon row sums", RowSumsKernel,
                             {.grid = dim3(GridFor(batch.q, kTile), count), .block = kThreads}, p,
                             batch));
  NSA_RETURN_IF_ERROR(
      Launch(exec, "muon factors", FactorsKernel, {.grid = count, .block = kThreads}, p, batch));
  return Launch(exec, "muon update", UpdateKernel,
                {.grid = Tiles(batch, matrices.size()), .block = kThreads}, p, batch);
}

}  // namespace nsa::cuda
