// Compression on CUDA. avg is limited by memory bandwidth: each compression block reads l rows and
// writes one. mlp is computed by the kernels of compress_mlp.cu and compress_mlp_backward.cu. Keys
// and values are computed by the same launch where they have the same width.
#include <array>
#include <span>

#include "kernels/nn/rope_angles.cuh"
#include "kernels/nsa/compress/compress_mlp.cuh"

namespace nsa::cuda {
namespace {

struct AverageArgs {
  CompressProblem p;
  const bf16* from[kMostCompressed];
  bf16* to[kMostCompressed];
  // Backward only: elements from a token to the next, and CompressBackwardArgs::dx_angles.
  int64_t stride[kMostCompressed];
  const float2* angles[kMostCompressed];
};

// Eight columns of [B, S_cmp, G, width] per thread, of the tensor blockIdx.y.
__global__ void AverageKernel(Begin begin, const __grid_constant__ AverageArgs args,
                              int64_t chunks) {
  begin.WaitForPrevious();
  const CompressProblem& p = args.p;
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  const int row = p.groups * p.width / 8;  // chunks of a token, all groups
  const int64_t block = i / row % p.blocks, b = i / row / p.blocks;
  const bf16* from =
      args.from[blockIdx.y] + p.InX() + ((b * p.seq_len + block * p.d) * row + i % row) * 8;
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
  Store8(args.to[blockIdx.y] + p.InY() + i * 8, sum);
}

// dx[t] = (1/l) Σ dy[i] over the blocks i that cover t, ascending.
__global__ void AverageBackwardKernel(Begin begin, const __grid_constant__ AverageArgs args,
                                      int64_t chunks) {
  begin.WaitForPrevious();
  const CompressProblem& p = args.p;
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  const int row = p.groups * p.width / 8;
  const int t = static_cast<int>(i / row % p.seq_len);
  const int64_t b = i / row / p.seq_len;
  const int first = t < p.l ? 0 : (t - p.l) / p.d + 1, last = min(t / p.d, p.blocks - 1);
  Float8 sum{};
  for (int block = first; block <= last; ++block) {
    const Float8 v = Load8(args.from[blockIdx.y] + ((b * p.blocks + block) * row + i % row) * 8);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.v[e] += v.v[e];
  }
  const float share = 1.0f / p.l;
#pragma unroll
  for (float& e : sum.v) e *= share;
  const int column = static_cast<int>(i % row) * 8;
  if (const float2* const angles = args.angles[blockIdx.y]; angles != nullptr) {
    sum = Rotated(sum, angles + ((int64_t{1} * t * p.width + column % p.width) >> 1), -1.0f);
  }
  Store8(args.to[blockIdx.y] + i / row * args.stride[blockIdx.y] + column, sum);
}

absl::Status LaunchAverage(const Exec& exec, const char* what,
                           void (*kernel)(Begin, AverageArgs, int64_t), unsigned int threads,
                           const AverageArgs& args, size_t tensors, int64_t size) {
  const int64_t chunks = size / 8;
  return Launch(exec, what, kernel,
                {.grid = dim3(GridFor(chunks, threads), static_cast<unsigned int>(tensors)),
                 .block = threads},
                args, chunks);
}

absl::Status ZeroInputGradient(const Exec& exec, const CompressBackwardArgs& args) {
  const auto rows = static_cast<size_t>(args.shape.batch) * args.shape.seq_len;
  return ToStatus(cudaMemset2DAsync(args.dx.data, sizeof(bf16) * InputStride(args), 0,
                                    sizeof(bf16) * args.dx.size / rows, rows, StreamOf(exec)),
                  "compress_backward");
}

// The tensors have the same shape, width and φ.
absl::Status CompressAlike(const Exec& exec, std::span<const CompressArgs> tensors) {
  AverageArgs args{.p = ProblemOf(tensors[0])};
  if (args.p.blocks == 0) return absl::OkStatus();
  if (tensors[0].phi == Phi::kMlp) return CompressMlp(exec, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    args.from[i] = DataOf<bf16>(tensors[i].x);
    args.to[i] = DataOf<bf16>(tensors[i].y);
  }
  return LaunchAverage(exec, "compress", AverageKernel, 64, args, tensors.size(),
                       tensors[0].y.size);
}

absl::Status CompressAlikeBackward(const Exec& exec,
                                   std::span<const CompressBackwardArgs> tensors) {
  AverageArgs args{.p = ProblemOf(tensors[0].shape, tensors[0].width)};
  if (args.p.blocks == 0) {
    for (const auto& tensor : tensors) NSA_RETURN_IF_ERROR(ZeroInputGradient(exec, tensor));
    return absl::OkStatus();
  }
  if (tensors[0].phi == Phi::kMlp) return CompressMlpBackward(exec, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    args.from[i] = DataOf<bf16>(tensors[i].dy);
    args.to[i] = DataOf<bf16>(tensors[i].dx);
    args.stride[i] = InputStride(tensors[i]);
    args.angles[i] = DataOf<float2>(tensors[i].dx_angles);
  }
  return LaunchAverage(exec, "compress_backward", AverageBackwardKernel, 256, args, tensors.size(),
                       tensors[0].dx.size);
}

}  // namespace

absl::Status Compress(const Exec& exec, const CompressArgs& args) {
  return CompressAlike(exec, {&args, 1});
}

absl::Status CompressBackward(const Exec& exec, const CompressBackwardArgs& args) {
  return CompressAlikeBackward(exec, {&args, 1});
}

absl::Status CompressKeysAndValues(const Exec& exec, const CompressArgs& keys,
                                   const CompressArgs& values) {
  if (keys.width == values.width) return CompressAlike(exec, std::array{keys, values});
  NSA_RETURN_IF_ERROR(CompressAlike(exec, {&keys, 1}));
  return CompressAlike(exec, {&values, 1});
}

absl::Status CompressKeysAndValuesBackward(const Exec& exec, const CompressBackwardArgs& keys,
                                           const CompressBackwardArgs& values) {
  if (keys.width == values.width) return CompressAlikeBackward(exec, std::array{keys, values});
  NSA_RETURN_IF_ERROR(CompressAlikeBackward(exec, {&keys, 1}));
  return CompressAlikeBackward(exec, {&values, 1});
}

}  // namespace nsa::cuda
