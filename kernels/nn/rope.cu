// RoPE on CUDA, 16 bytes (4 pairs) per thread and access; limited by memory bandwidth: 4 bytes per
// element. All heads of a token share its angles (rope_angles.cuh), which a thread block computes
// once for its tokens.
#include "kernels/cuda/launch.h"
#include "kernels/nn/rope.h"
#include "kernels/nn/rope_angles.cuh"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 16;  // of a thread block

__global__ void __launch_bounds__(kThreads)
    RopeKernel(Begin begin, const bf16* x, bf16* y, const __grid_constant__ RopeFrequencies f,
               int seq_len, int position0, int heads, int head_dim, float direction,
               int64_t tokens) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t token0 = int64_t{1} * blockIdx.x * kTokens;
  const int count = static_cast<int>(min(int64_t{kTokens}, tokens - token0));
  FillRopeAngles(f, token0, count, seq_len, position0, head_dim / 2, angles);
  __syncthreads();
  begin.WaitForPrevious();
  const int per_head = head_dim / 8, per_token = heads * per_head;
  const int64_t first = token0 * per_token;
#pragma unroll 4
  for (int i = threadIdx.x; i < count * per_token; i += kThreads) {
    const float2* mine = angles + i / per_token * (head_dim / 2) + i % per_head * 4;
    Store8(y + 8 * (first + i), Rotated(Load8(x + 8 * (first + i)), mine, direction));
  }
}

// One pair of one position per thread.
__global__ void __launch_bounds__(kThreads)
    RopeAnglesKernel(Begin begin, const __grid_constant__ RopeFrequencies f, int pairs,
                     int64_t count, float2* angles) {
  const int64_t i = int64_t{1} * blockIdx.x * kThreads + threadIdx.x;
  float2 angle{};
  if (i < count) angle = RopeAngle(f, static_cast<int>(i / pairs), static_cast<int>(i % pairs));
  begin.WaitForPrevious();
  if (i < count) angles[i] = angle;
}

// The same of normalized heads, forward or backward. A head is in neighbouring lanes, each with
// kPieces chunks of it.
struct NormPointers {
  float eps;
  float* rstd;             // forward; may be null
  const bf16* y_forward;   // backward
  const float* r_forward;  // backward
};

template <bool kBackward, int kPieces>
__global__ void __launch_bounds__(kThreads)
    NormRopeKernel(Begin begin, const bf16* x, bf16* y, const __grid_constant__ NormPointers norm,
                   const __grid_constant__ RopeFrequencies f, int seq_len, int position0, int heads,
                   int head_dim, int64_t tokens) {
  __shared__ float2 angles[kTokens * kMaxRopePairs];
  const int64_t token0 = int64_t{1} * blockIdx.x * kTokens;
  const int count = static_cast<int>(min(int64_t{kTokens}, tokens - token0));
  FillRopeAngles(f, token0, count, seq_len, position0, head_dim / 2, angles);
  __syncthreads();
  begin.WaitForPrevious();
  const int lanes = head_dim / (8 * kPieces), per_token = heads * lanes;
  for (int i = threadIdx.x; i < count * per_token; i += kThreads) {
    const int head = i / lanes, lane = i - head * lanes;
    const float2* mine = angles + i / per_token * (head_dim / 2) + lane * 4;
    const int64_t row = token0 * heads + head, at = row * head_dim + 8 * lane;
    Float8 value[kPieces], forward[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      value[j] = Load8(x + at + 8 * j * lanes);
      if (kBackward) forward[j] = Load8(norm.y_forward + at + 8 * j * lanes);
    }
    float factor = 1;
    if (kBackward) {
      HeadGradient(value, forward, norm.r_forward[row], lanes);
    } else {
      factor = HeadRstd(value, lanes, norm.eps);
      if (norm.rstd != nullptr && lane == 0) norm.rstd[row] = factor;
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      Store8(y + at + 8 * j * lanes,
             Rotated(Scaled(value[j], factor), mine + 4 * j * lanes, kBackward ? -1.0f : 1.0f));
    }
  }
}

template <int kPieces>
absl::Status LaunchNormRope(const Exec& exec, const RopeArgs& args) {
  const int64_t tokens = int64_t{1} * args.batch * args.seq_len;
  const NormPointers norm{args.eps, DataOf<float>(args.rstd), DataOf<bf16>(args.y_forward),
                          DataOf<float>(args.rstd_forward)};
  return Launch(
      exec, "rope", args.inverse ? NormRopeKernel<true, kPieces> : NormRopeKernel<false, kPieces>,
      {.grid = GridFor(tokens, kTokens), .block = kThreads}, DataOf<bf16>(args.x),
      DataOf<bf16>(args.y), norm, FrequenciesOf(args.head_dim, args.base, args.scale, args.scaling),
      args.seq_len, args.first, args.heads, args.head_dim, tokens);
}

absl::Status NormRope(const Exec& exec, const RopeArgs& args) {
  return PiecesOfHead(args.head_dim) == 1 ? LaunchNormRope<1>(exec, args)
                                          : LaunchNormRope<3>(exec, args);
}

}  // namespace

absl::Status RopeAngles(const Exec& exec, int32_t seq_len, int32_t head_dim, float base,
                        float scale, const RopeScaling& scaling, const Tensor& angles) {
  const int pairs = head_dim / 2;
  const int64_t count = int64_t{1} * seq_len * pairs;
  return Launch(
      exec, "rope_angles", RopeAnglesKernel, {.grid = GridFor(count, kThreads), .block = kThreads},
      FrequenciesOf(head_dim, base, scale, scaling), pairs, count, DataOf<float2>(angles));
}

absl::Status Rope(const Exec& exec, const RopeArgs& args) {
  if (args.normalize) return NormRope(exec, args);
  const int64_t tokens = int64_t{1} * args.batch * args.seq_len;
  return Launch(exec, "rope", RopeKernel, {.grid = GridFor(tokens, kTokens), .block = kThreads},
                DataOf<bf16>(args.x), DataOf<bf16>(args.y),
                FrequenciesOf(args.head_dim, args.base, args.scale, args.scaling), args.seq_len,
                args.first, args.heads, args.head_dim, args.inverse ? -1.0f : 1.0f, tokens);
}

}  // namespace nsa::cuda
