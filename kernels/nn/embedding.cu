// Embedding on CUDA. Backward sums the gradients for each vocabulary row in token order: tokens are
// cut into ranges, one thread block per (vocabulary row, range) finds its tokens by a scan and adds
// their rows, and a last kernel adds the ranges in order. With a vocabulary of 256 there are 64
// ranges. With a large vocabulary, where few tokens share a row and the scans would take longest,
// tokens are sorted instead (embedding_sorted.cu).
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/embedding.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void EmbeddingKernel(Begin begin, const int* tokens, const bf16* table, bf16* y, int dim,
                                int64_t chunks) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  const int per_row = dim / 8;
  reinterpret_cast<uint4*>(y)[i] = reinterpret_cast<const uint4*>(
      table)[int64_t{1} * tokens[i / per_row] * per_row + i % per_row];
}

bool Sorts(int64_t vocab) { return vocab > 8192; }
int RangesOf(int64_t vocab) { return static_cast<int>(std::clamp<int64_t>(16384 / vocab, 1, 64)); }

// Grid: vocab · ranges. The thread block reads the tokens of its range 256 at a time, collects
// those of its vocabulary row in order, then adds their rows.
__global__ void __launch_bounds__(kThreads)
    EmbeddingBackwardKernel(Begin start, const int* tokens, const bf16* dy, float* out,
                            int64_t rows, int64_t vocab, int dim, int ranges) {
  __shared__ int found[kThreads];
  __shared__ int warp_counts[kThreads / kWarp];
  const int64_t row = blockIdx.x / ranges;
  const int range = blockIdx.x % ranges;
  const int64_t begin = rows * range / ranges, end = rows * (range + 1) / ranges;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  extern __shared__ float sums[];  // [dim]
  for (int c = threadIdx.x; c < dim; c += kThreads) sums[c] = 0;
  start.WaitForPrevious();
  for (int64_t base = begin; base < end; base += kThreads) {
    const int64_t t = base + threadIdx.x;
    const bool match = t < end && tokens[t] == row;
    const unsigned int votes = __ballot_sync(0xffffffffu, match);
    if (lane == 0) warp_counts[warp] = __popc(votes);
    if (__syncthreads_or(match) == 0) continue;
    int before = __popc(votes & ((1u << lane) - 1)), total = 0;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < warp) before += warp_counts[w];
      total += warp_counts[w];
    }
    if (match) found[before] = static_cast<int>(t - begin);
    __syncthreads();
    for (int c = threadIdx.x; c < dim; c += kThreads) {
      float sum = sums[c];
      for (int i = 0; i < total; ++i) sum += __bfloat162float(dy[(begin + found[i]) * dim + c]);
      sums[c] = sum;
    }
    __syncthreads();
  }
  __syncthreads();
  float* to = out + (int64_t{1} * range * vocab + row) * dim;
  for (int c = threadIdx.x; c < dim; c += kThreads) to[c] = sums[c];
}

__global__ void AddRanges(Begin begin, const float* partial, int ranges, int64_t size,
                          float* dtable) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (int r = 0; r < ranges; ++r) sum += partial[r * size + i];
  dtable[i] += sum;
}

}  // namespace

int64_t EmbeddingBackwardWorkspaceBytes(int64_t rows, int64_t vocab, int64_t dim) {
  if (Sorts(vocab)) return SortedEmbeddingBackwardBytes(rows, vocab, dim);
  return 4 * RangesOf(vocab) * vocab * dim;
}

absl::Status Embedding(const Exec& exec, const EmbeddingArgs& args) {
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("embedding", "dim", args.dim));
  if (args.rows == 0) return absl::OkStatus();
  const int64_t chunks = args.rows * args.dim / 8;
  return Launch(exec, "embedding", EmbeddingKernel, {.grid = GridFor(chunks, 256), .block = 256},
                DataOf<int>(args.tokens), DataOf<bf16>(args.table), DataOf<bf16>(args.y),
                static_cast<int>(args.dim), chunks);
}

absl::Status EmbeddingBackward(const Exec& exec, const EmbeddingBackwardArgs& args) {
  if (Sorts(args.vocab)) return SortedEmbeddingBackward(exec, args);
  const int ranges = RangesOf(args.vocab), dim = static_cast<int>(args.dim);
  NSA_ASSIGN_OR_RETURN(
      void* const workspace,
      WorkspaceOf(exec, EmbeddingBackwardWorkspaceBytes(args.rows, args.vocab, args.dim),
                  "embedding_backward"));
  auto* partial = static_cast<float*>(workspace);
  NSA_RETURN_IF_ERROR(Launch(exec, "embedding_backward", EmbeddingBackwardKernel,
                             {.grid = static_cast<unsigned int>(args.vocab * ranges),
                              .block = kThreads,
                              .shared = 4 * dim},
                             DataOf<int>(args.tokens), DataOf<bf16>(args.dy), partial, args.rows,
                             args.vocab, dim, ranges));
  const int64_t size = args.vocab * args.dim;
  return Launch(exec, "embedding_backward", AddRanges, {.grid = GridFor(size, 256), .block = 256},
                partial, ranges, size, DataOf<float>(args.dtable));
}

}  // namespace nsa::cuda
