// Compression on CUDA. avg is limited by memory bandwidth: each compression block reads l rows and
// writes one. mlp gathers the rows u = x + pe of the compression blocks into the workspace as a
// matrix [B·S_cmp·G, l·width] and multiplies it with the library. What it does between the products
// is small, so one kernel does all that can run at the same time.
#include "common/nsa/attention_scratch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/matmul.h"
#include "kernels/nn/silu.h"
#include "kernels/nsa/compress/compress.h"

namespace nsa::cuda {
namespace {

struct CompressProblem {
  int batch, seq_len, groups, width, l, d, blocks;
};

CompressProblem ProblemOf(const NsaShape& s, int width) {
  return {s.batch, s.seq_len, s.n_kv_groups, width, s.l, s.d, s.cmp_blocks()};
}

// Eight columns of [B, S_cmp, G, width] per thread.
__global__ void AverageKernel(Begin begin, CompressProblem p, const bf16* x, bf16* y,
                              int64_t chunks) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  const int row = p.groups * p.width / 8;  // chunks of a token, all groups
  const int64_t block = i / row % p.blocks, b = i / row / p.blocks;
  const bf16* from = x + ((b * p.seq_len + block * p.d) * row + i % row) * 8;
  Float8 sum{};
#pragma unroll 16
  for (int r = 0; r < p.l; ++r) {
    const Float8 v = Load8(from + int64_t{1} * r * row * 8);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.v[e] += v.v[e];
  }
  const float share = 1.0f / p.l;
#pragma unroll
  for (float& e : sum.v) e *= share;
  Store8(y + i * 8, sum);
}

// dx[t] = (1/l) Σ dy[i] over the blocks i that cover t, ascending.
__global__ void AverageBackwardKernel(Begin begin, CompressProblem p, const bf16* dy, bf16* dx,
                                      int64_t chunks) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  const int row = p.groups * p.width / 8;
  const int t = static_cast<int>(i / row % p.seq_len);
  const int64_t b = i / row / p.seq_len;
  const int first = t < p.l ? 0 : (t - p.l) / p.d + 1, last = min(t / p.d, p.blocks - 1);
  Float8 sum{};
  for (int block = first; block <= last; ++block) {
    const Float8 v = Load8(dy + ((b * p.blocks + block) * row + i % row) * 8);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.v[e] += v.v[e];
  }
  const float share = 1.0f / p.l;
#pragma unroll
  for (float& e : sum.v) e *= share;
  Store8(dx + i * 8, sum);
}

__device__ __forceinline__ Float8 Silu8(Float8 x) {
#pragma unroll
  for (float& e : x.v) e = e / (1.0f + __expf(-e));
  return x;
}

// Chunk i of u[(b,i,g), r, :] = x[b, i·d + r, g, :] + pe[r, :].
__device__ __forceinline__ void GatherChunk(const CompressProblem& p, const bf16* x, const bf16* pe,
                                            bf16* u, int64_t i) {
  const int per = p.width / 8;
  const int c = static_cast<int>(i % per), r = static_cast<int>(i / per % p.l);
  const int64_t row = i / per / p.l;
  const int g = static_cast<int>(row % p.groups);
  const int64_t block = row / p.groups % p.blocks, b = row / p.groups / p.blocks;
  Float8 v = Load8(x + (((b * p.seq_len + block * p.d + r) * p.groups + g) * p.width + c * 8));
  const Float8 e = Load8(pe + r * p.width + c * 8);
#pragma unroll
  for (int k = 0; k < 8; ++k) v.v[k] += e.v[k];
  Store8(u + i * 8, v);
}

// The first `chunks` threads gather u; those after them compute act = silu(hidden), where wanted.
__global__ void GatherKernel(Begin begin, CompressProblem p, const bf16* x, const bf16* pe, bf16* u,
                             int64_t chunks, const bf16* hidden, bf16* act, int64_t act_chunks) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i < chunks) return GatherChunk(p, x, pe, u, i);
  const int64_t k = i - chunks;
  if (k < act_chunks) Store8(act + k * 8, Silu8(Load8(hidden + k * 8)));
}

// x[row, c] += bias[c], in place; act = silu(x) unless null.
__global__ void AddBiasKernel(Begin begin, bf16* x, const bf16* bias, bf16* act, int width,
                              int64_t chunks) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  Float8 v = Load8(x + i * 8);
  const Float8 b = Load8(bias + i * 8 % width);
#pragma unroll
  for (int e = 0; e < 8; ++e) v.v[e] += b.v[e];
  const uint4 rounded = AsBf16(v);
  *reinterpret_cast<uint4*>(x + i * 8) = rounded;
  if (act != nullptr) Store8(act + i * 8, Silu8(AsFloats(rounded)));
}

// Chunk i of dx[b, t, g, :] = Σ du[(b,i,g), t − i·d, :] over the blocks i that cover t, ascending.
__device__ __forceinline__ void ScatterChunk(const CompressProblem& p, const bf16* du, bf16* dx,
                                             int64_t i) {
  const int per = p.width / 8;
  const int c = static_cast<int>(i % per), g = static_cast<int>(i / per % p.groups);
  const int t = static_cast<int>(i / per / p.groups % p.seq_len);
  const int64_t b = i / per / p.groups / p.seq_len;
  const int first = t < p.l ? 0 : (t - p.l) / p.d + 1, last = min(t / p.d, p.blocks - 1);
  Float8 sum{};
  for (int block = first; block <= last; ++block) {
    const int64_t row = (b * p.blocks + block) * p.groups + g;
    const Float8 v = Load8(du + ((row * p.l + t - block * p.d) * p.width + c * 8));
#pragma unroll
    for (int k = 0; k < 8; ++k) sum.v[k] += v.v[k];
  }
  Store8(dx + i * 8, sum);
}

// Sums of columns, out[c] += Σ_rows x[row, c], of several matrices with the same rows. A thread
// block has kSumColumns columns of one of them: kSumSlices slices of the rows, each added in order
// by the threads of a slice, then eight slices by one thread and these by a fixed tree.
constexpr int kSumThreads = 256, kSumColumns = 32, kSumSlices = kSumThreads * 8 / kSumColumns;
constexpr int kSumMatrices = 3;
struct ColumnSums {
  const bf16* x[kSumMatrices];
  float* out[kSumMatrices];
  int width[kSumMatrices];
  int end[kSumMatrices];  // thread blocks up to and with this matrix
  int64_t rows;
};

__device__ __forceinline__ void SumColumns(const ColumnSums& sums, int matrix, int column0) {
  __shared__ float slices[kSumColumns][kSumSlices + 1];
  const int width = sums.width[matrix], slice = threadIdx.x / (kSumColumns / 8);
  const int in_tile = threadIdx.x % (kSumColumns / 8) * 8, column = column0 + in_tile;
  const int64_t begin = sums.rows * slice / kSumSlices, end = sums.rows * (slice + 1) / kSumSlices;
  Float8 sum{};
  if (column < width) {
    const bf16* from = sums.x[matrix] + column;
#pragma unroll 8
    for (int64_t row = begin; row < end; ++row) {
      const Float8 v = Load8(from + row * width);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum.v[e] += v.v[e];
    }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) slices[in_tile + e][slice] = sum.v[e];
  __syncthreads();
  const int own = threadIdx.x / 8, part = threadIdx.x % 8;
  float total = 0;
  for (int i = 0; i < kSumSlices / 8; ++i) total += slices[own][part * (kSumSlices / 8) + i];
  for (int offset = 1; offset < 8; offset <<= 1) {
    total += __shfl_xor_sync(0xffffffffu, total, offset);
  }
  if (part == 0 && column0 + own < width) sums.out[matrix][column0 + own] += total;
}

// The first thread blocks add up columns; the others compute dx.
__global__ void __launch_bounds__(kSumThreads)
    ScatterKernel(Begin begin, CompressProblem p, const bf16* du, bf16* dx, int64_t chunks,
                  const __grid_constant__ ColumnSums sums) {
  begin.WaitForPrevious();
  const int block = static_cast<int>(blockIdx.x), sum_blocks = sums.end[kSumMatrices - 1];
  if (block < sum_blocks) {
    int matrix = 0;
    while (block >= sums.end[matrix]) ++matrix;
    const int first = matrix == 0 ? 0 : sums.end[matrix - 1];
    return SumColumns(sums, matrix, (block - first) * kSumColumns);
  }
  const int64_t i = int64_t{kSumThreads} * (block - sum_blocks) + threadIdx.x;
  if (i < chunks) ScatterChunk(p, du, dx, i);
}

// The workspace of φ mlp: `u` holds u or its gradient, `act` silu(hidden).
struct MlpWorkspace {
  int64_t rows, in, hidden;
  Tensor u, act;
};
MlpWorkspace LayOut(const NsaShape& s, int width, void* base) {
  auto* at = static_cast<uint8_t*>(base);
  MlpWorkspace w{};
  w.rows = int64_t{1} * s.batch * s.cmp_blocks() * s.n_kv_groups;
  w.in = int64_t{1} * s.l * width;
  w.hidden = PhiHidden(width);
  w.u = {at, w.rows * w.in, DType::kBf16};
  w.act = {at + PlanPhiScratch(s, width).act, w.rows * w.hidden, DType::kBf16};
  return w;
}

// w.u ← u, and unless `hidden` is empty w.act ← silu(hidden).
absl::Status Gather(const Exec& exec, const CompressProblem& p, const ConstTensor& x,
                    const ConstTensor& pe, const MlpWorkspace& w, const ConstTensor& hidden) {
  const int64_t chunks = w.u.size / 8, act_chunks = hidden.size / 8;
  return Launch(exec, "compress_gather", GatherKernel,
                {.grid = GridFor(chunks + act_chunks, 256), .block = 256}, p, DataOf<bf16>(x),
                DataOf<bf16>(pe), DataOf<bf16>(w.u), chunks, DataOf<bf16>(hidden),
                DataOf<bf16>(w.act), act_chunks);
}

// x += bias, and unless `act` is empty act ← silu(x).
absl::Status AddBias(const Exec& exec, const Tensor& x, const ConstTensor& bias,
                     const Tensor& act) {
  return Launch(exec, "compress_bias", AddBiasKernel,
                {.grid = GridFor(x.size / 8, 256), .block = 256}, DataOf<bf16>(x),
                DataOf<bf16>(bias), DataOf<bf16>(act), static_cast<int>(bias.size), x.size / 8);
}

absl::Status CompressMlp(const Exec& exec, const CompressArgs& args) {
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, PlanPhiScratch(args.shape, args.width).bytes, "compress"));
  const MlpWorkspace w = LayOut(args.shape, args.width, workspace);
  NSA_RETURN_IF_ERROR(
      Gather(exec, ProblemOf(args.shape, args.width), args.x, args.params.pe, w, /*hidden=*/{}));
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = w.rows,
                                         .n = w.hidden,
                                         .k = w.in,
                                         .transpose_b = true,
                                         .a = w.u,
                                         .b = args.params.w1,
                                         .c = args.hidden}));
  NSA_RETURN_IF_ERROR(AddBias(exec, args.hidden, args.params.b1, w.act));
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = w.rows,
                                         .n = args.width,
                                         .k = w.hidden,
                                         .transpose_b = true,
                                         .a = w.act,
                                         .b = args.params.w2,
                                         .c = args.y}));
  return AddBias(exec, args.y, args.params.b2, /*act=*/{});
}

// The sums over rows that are the gradients of pe, b1 and b2.
ColumnSums SumsOf(const CompressBackwardArgs& args, const MlpWorkspace& w) {
  const int hidden = static_cast<int>(w.hidden), in = static_cast<int>(w.in);
  ColumnSums sums{
      {DataOf<bf16>(w.u), DataOf<bf16>(args.d_hidden), DataOf<bf16>(args.dy)},
      {DataOf<float>(args.grads.pe), DataOf<float>(args.grads.b1), DataOf<float>(args.grads.b2)},
      {in, hidden, args.width},
      {},
      w.rows};
  int blocks = 0;
  for (int i = 0; i < kSumMatrices; ++i) {
    sums.end[i] = blocks += CeilDiv(sums.width[i], kSumColumns);
  }
  return sums;
}

// dx from the gradient of u, and the sums over rows.
absl::Status Scatter(const Exec& exec, const CompressBackwardArgs& args, const MlpWorkspace& w) {
  const ColumnSums sums = SumsOf(args, w);
  const int64_t chunks = args.dx.size / 8;
  return Launch(
      exec, "compress_scatter", ScatterKernel,
      {.grid = GridFor(chunks, kSumThreads) + static_cast<unsigned int>(sums.end[kSumMatrices - 1]),
       .block = kSumThreads},
      ProblemOf(args.shape, args.width), DataOf<bf16>(w.u), DataOf<bf16>(args.dx), chunks, sums);
}

absl::Status CompressMlpBackward(const Exec& exec, const CompressBackwardArgs& args) {
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, PlanPhiScratch(args.shape, args.width).bytes, "compress"));
  const MlpWorkspace w = LayOut(args.shape, args.width, workspace);
  NSA_RETURN_IF_ERROR(
      Gather(exec, ProblemOf(args.shape, args.width), args.x, args.params.pe, w, args.hidden));
  // Output layer: dW2 += dyᵀ silu(hidden), d_act = dy W2.
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = args.width,
                                         .n = w.hidden,
                                         .k = w.rows,
                                         .transpose_a = true,
                                         .a = args.dy,
                                         .b = w.act,
                                         .c = args.grads.w2,
                                         .accumulate = true}));
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = w.rows,
                                         .n = w.hidden,
                                         .k = args.width,
                                         .a = args.dy,
                                         .b = args.params.w2,
                                         .c = args.d_hidden}));
  NSA_RETURN_IF_ERROR(
      nsa::SiluBackward(exec, {.dy = args.d_hidden, .x = args.hidden, .dx = args.d_hidden}));
  // Input layer; the gradient of u takes the place of u.
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = w.hidden,
                                         .n = w.in,
                                         .k = w.rows,
                                         .transpose_a = true,
                                         .a = args.d_hidden,
                                         .b = w.u,
                                         .c = args.grads.w1,
                                         .accumulate = true}));
  NSA_RETURN_IF_ERROR(nsa::Matmul(
      exec,
      {.m = w.rows, .n = w.in, .k = w.hidden, .a = args.d_hidden, .b = args.params.w1, .c = w.u}));
  return Scatter(exec, args, w);
}

}  // namespace

absl::Status Compress(const Exec& exec, const CompressArgs& args) {
  const CompressProblem p = ProblemOf(args.shape, args.width);
  if (p.blocks == 0) return absl::OkStatus();
  if (args.phi == Phi::kMlp) return CompressMlp(exec, args);
  const int64_t chunks = args.y.size / 8;
  return Launch(exec, "compress", AverageKernel, {.grid = GridFor(chunks, 64), .block = 64}, p,
                DataOf<bf16>(args.x), DataOf<bf16>(args.y), chunks);
}

absl::Status CompressBackward(const Exec& exec, const CompressBackwardArgs& args) {
  const CompressProblem p = ProblemOf(args.shape, args.width);
  if (p.blocks == 0) {
    return ToStatus(cudaMemsetAsync(args.dx.data, 0, 2 * args.dx.size, StreamOf(exec)),
                    "compress_backward");
  }
  if (args.phi == Phi::kMlp) return CompressMlpBackward(exec, args);
  const int64_t chunks = args.dx.size / 8;
  return Launch(exec, "compress_backward", AverageBackwardKernel,
                {.grid = GridFor(chunks, 256), .block = 256}, p, DataOf<bf16>(args.dy),
                DataOf<bf16>(args.dx), chunks);
}

}  // namespace nsa::cuda
