// Compression on CUDA. avg is limited by memory bandwidth: each compression block reads l rows and
// writes one. mlp gathers the rows u = x + pe of the compression blocks into the workspace as a
// matrix [B·S_cmp·G, l·width] and multiplies it with the library.
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
__global__ void AverageKernel(CompressProblem p, const bf16* x, bf16* y, int64_t chunks) {
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
__global__ void AverageBackwardKernel(CompressProblem p, const bf16* dy, bf16* dx, int64_t chunks) {
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

// u[(b,i,g), r, :] = x[b, i·d + r, g, :] + pe[r, :].
__global__ void GatherKernel(CompressProblem p, const bf16* x, const bf16* pe, bf16* u,
                             int64_t chunks) {
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
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

// x[row, c] += bias[c], in place.
__global__ void AddBiasKernel(bf16* x, const bf16* bias, int width, int64_t size) {
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) x[i] = __float2bfloat16(__bfloat162float(x[i]) + __bfloat162float(bias[i % width]));
}

// dx[b, t, g, :] = Σ du[(b,i,g), t − i·d, :] over the blocks i that cover t, ascending.
__global__ void ScatterKernel(CompressProblem p, const bf16* du, bf16* dx, int64_t chunks) {
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
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

// The next two kernels compute out[c] += Σ_rows x[row, c]: rows are cut into kSumBlocks ranges,
// whose sums are added in order.
__global__ void ColumnSumsKernel(const bf16* x, int64_t rows, int width, float* partial) {
  const int64_t begin = rows * blockIdx.x / gridDim.x, end = rows * (blockIdx.x + 1) / gridDim.x;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    float sum = 0;
    for (int64_t row = begin; row < end; ++row) sum += __bfloat162float(x[row * width + c]);
    partial[int64_t{1} * blockIdx.x * width + c] = sum;
  }
}
__global__ void AddColumnSumsKernel(const float* partial, int width, float* out) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= width) return;
  float sum = 0;
  for (int block = 0; block < kSumBlocks; ++block) sum += partial[int64_t{1} * block * width + c];
  out[c] += sum;
}

absl::Status AddColumnSums(const Exec& exec, const void* x, int64_t rows, int width, float* partial,
                           const Tensor& out) {
  ColumnSumsKernel<<<kSumBlocks, 256, 0, StreamOf(exec)>>>(static_cast<const bf16*>(x), rows, width,
                                                           partial);
  AddColumnSumsKernel<<<GridFor(width, 128), 128, 0, StreamOf(exec)>>>(partial, width,
                                                                       DataOf<float>(out));
  return CheckLaunch("compress_bias_gradient");
}

// The workspace of φ mlp: `u` holds u or its gradient, `act` silu(hidden), `partial` the partial
// sums of the gradients of the biases and of pe.
struct MlpWorkspace {
  int64_t rows, in, hidden;
  Tensor u, act;
  float* partial;
};
MlpWorkspace LayOut(const NsaShape& s, int width, void* base) {
  static_assert(PhiScratch::kSums == kSumBlocks);
  const PhiScratch plan = PlanPhiScratch(s, width);
  auto* at = static_cast<uint8_t*>(base);
  MlpWorkspace w{};
  w.rows = int64_t{1} * s.batch * s.cmp_blocks() * s.n_kv_groups;
  w.in = int64_t{1} * s.l * width;
  w.hidden = PhiHidden(width);
  w.u = {at, w.rows * w.in, DType::kBf16};
  w.act = {at + plan.act, w.rows * w.hidden, DType::kBf16};
  w.partial = reinterpret_cast<float*>(at + plan.sums);
  return w;
}

absl::Status Gather(const Exec& exec, const CompressProblem& p, const ConstTensor& x,
                    const ConstTensor& pe, const MlpWorkspace& w) {
  const int64_t chunks = w.u.size / 8;
  GatherKernel<<<GridFor(chunks, 256), 256, 0, StreamOf(exec)>>>(
      p, DataOf<bf16>(x), DataOf<bf16>(pe), DataOf<bf16>(w.u), chunks);
  return CheckLaunch("compress_gather");
}

absl::Status AddBias(const Exec& exec, const Tensor& x, const ConstTensor& bias) {
  AddBiasKernel<<<GridFor(x.size, 256), 256, 0, StreamOf(exec)>>>(
      DataOf<bf16>(x), DataOf<bf16>(bias), static_cast<int>(bias.size), x.size);
  return CheckLaunch("compress_bias");
}

absl::Status CompressMlp(const Exec& exec, const CompressArgs& args) {
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, PlanPhiScratch(args.shape, args.width).bytes, "compress"));
  const MlpWorkspace w = LayOut(args.shape, args.width, workspace);
  NSA_RETURN_IF_ERROR(Gather(exec, ProblemOf(args.shape, args.width), args.x, args.params.pe, w));
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = w.rows,
                                         .n = w.hidden,
                                         .k = w.in,
                                         .transpose_b = true,
                                         .a = w.u,
                                         .b = args.params.w1,
                                         .c = args.hidden}));
  NSA_RETURN_IF_ERROR(AddBias(exec, args.hidden, args.params.b1));
  NSA_RETURN_IF_ERROR(nsa::Silu(exec, {.x = args.hidden, .y = w.act}));
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = w.rows,
                                         .n = args.width,
                                         .k = w.hidden,
                                         .transpose_b = true,
                                         .a = w.act,
                                         .b = args.params.w2,
                                         .c = args.y}));
  return AddBias(exec, args.y, args.params.b2);
}

absl::Status CompressMlpBackward(const Exec& exec, const CompressBackwardArgs& args) {
  const CompressProblem p = ProblemOf(args.shape, args.width);
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, PlanPhiScratch(args.shape, args.width).bytes, "compress"));
  const MlpWorkspace w = LayOut(args.shape, args.width, workspace);
  // Output layer: dW2 += dyᵀ silu(hidden), db2 += Σ dy, d_act = dy W2.
  NSA_RETURN_IF_ERROR(nsa::Silu(exec, {.x = args.hidden, .y = w.act}));
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = args.width,
                                         .n = w.hidden,
                                         .k = w.rows,
                                         .transpose_a = true,
                                         .a = args.dy,
                                         .b = w.act,
                                         .c = args.grads.w2,
                                         .accumulate = true}));
  NSA_RETURN_IF_ERROR(
      AddColumnSums(exec, args.dy.data, w.rows, args.width, w.partial, args.grads.b2));
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = w.rows,
                                         .n = w.hidden,
                                         .k = args.width,
                                         .a = args.dy,
                                         .b = args.params.w2,
                                         .c = args.d_hidden}));
  NSA_RETURN_IF_ERROR(
      nsa::SiluBackward(exec, {.dy = args.d_hidden, .x = args.hidden, .dx = args.d_hidden}));
  // Input layer, with u gathered again.
  NSA_RETURN_IF_ERROR(Gather(exec, p, args.x, args.params.pe, w));
  NSA_RETURN_IF_ERROR(nsa::Matmul(exec, {.m = w.hidden,
                                         .n = w.in,
                                         .k = w.rows,
                                         .transpose_a = true,
                                         .a = args.d_hidden,
                                         .b = w.u,
                                         .c = args.grads.w1,
                                         .accumulate = true}));
  NSA_RETURN_IF_ERROR(AddColumnSums(exec, args.d_hidden.data, w.rows, static_cast<int>(w.hidden),
                                    w.partial, args.grads.b1));
  NSA_RETURN_IF_ERROR(nsa::Matmul(
      exec,
      {.m = w.rows, .n = w.in, .k = w.hidden, .a = args.d_hidden, .b = args.params.w1, .c = w.u}));
  NSA_RETURN_IF_ERROR(
      AddColumnSums(exec, w.u.data, w.rows, static_cast<int>(w.in), w.partial, args.grads.pe));
  const int64_t chunks = args.dx.size / 8;
  ScatterKernel<<<GridFor(chunks, 256), 256, 0, StreamOf(exec)>>>(p, DataOf<bf16>(w.u),
                                                                  DataOf<bf16>(args.dx), chunks);
  return CheckLaunch("compress_scatter");
}

}  // namespace

absl::Status Compress(const Exec& exec, const CompressArgs& args) {
  const CompressProblem p = ProblemOf(args.shape, args.width);
  if (p.blocks == 0) return absl::OkStatus();
  if (args.phi == Phi::kMlp) return CompressMlp(exec, args);
  const int64_t chunks = args.y.size / 8;
  AverageKernel<<<GridFor(chunks, 64), 64, 0, StreamOf(exec)>>>(p, DataOf<bf16>(args.x),
                                                                DataOf<bf16>(args.y), chunks);
  return CheckLaunch("compress");
}

absl::Status CompressBackward(const Exec& exec, const CompressBackwardArgs& args) {
  const CompressProblem p = ProblemOf(args.shape, args.width);
  if (p.blocks == 0) {
    return ToStatus(cudaMemsetAsync(args.dx.data, 0, 2 * args.dx.size, StreamOf(exec)),
                    "compress_backward");
  }
  if (args.phi == Phi::kMlp) return CompressMlpBackward(exec, args);
  const int64_t chunks = args.dx.size / 8;
  AverageBackwardKernel<<<GridFor(chunks, 256), 256, 0, StreamOf(exec)>>>(
      p, DataOf<bf16>(args.dy), DataOf<bf16>(args.dx), chunks);
  return CheckLaunch("compress_backward");
}

}  // namespace nsa::cuda
