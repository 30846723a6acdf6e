// dk and dv of window and compressed, where the tokens that see a key follow each other; and the
// sum of segments, which the selected branch uses too.
#pragma once

#include "kernels/nsa/branch/attention_backward.cuh"

namespace nsa::cuda {

// Grid: tiles of 64 · kGroups keys · segments · B · G.
template <Branch kBranch, int kD, int kGroups>
__global__ void __launch_bounds__(kGroups* kDkvThreads, DkvBlocks(kD, kGroups))
    AttentionDkvKernel(Begin begin, AttentionProblem p,
                       const __grid_constant__ AttentionBoxes boxes, AttentionGradients grad,
                       TokenSegments segments, float* partial) {
  static_assert(kBranch != kSel);
  // With keys of 192 an A100 has room for one thread block less than it has registers for.
  static_assert(kFit<DkvBlocks(kD, kGroups) - (kD > 128 && !kHasWgmma ? 1 : 0),
                     DkvSharedBytes(kD, kLargeTiles<kD>, kGroups, 0)>);
  constexpr int kKeys = kGroups * kKeyTile;
  const int key_tiles = CeilDiv(p.keys, kKeys);
  const int segment = blockIdx.x % segments.count;
  const int tile = blockIdx.x / segments.count % key_tiles;
  const int bg = blockIdx.x / segments.count / key_tiles;
  DkvWork work{};
  work.begin = tile * kKeys;
  work.end = min(work.begin + kKeys, p.keys);
  const TokenRange tokens = BranchRule<kBranch>::Tokens(p, work.begin, work.end);
  work.first = tokens.begin + segment * segments.tokens;
  work.count = max(0, min(segments.tokens, tokens.end - work.first));
  if (segments.count > 1) {
    work.partial = partial + int64_t{1} * blockIdx.x * kKeys * kPartialRow<kD>;
  }
  extern __shared__ __align__(kTileAlignment) uint8_t shared[];
  begin.WaitForPrevious();
  WalkRows<kBranch, kD, kGroups>(p, boxes, grad, work, bg / p.groups, bg % p.groups, shared);
}

constexpr int kAddSlices = 8;  // thread blocks that add the partial sums of one key tile

// Adds the partial sums of keys [begin, end) of group g over the segments in order. The segments
// are `stride` floats apart. The call does part `slice` of kAddSlices, four columns per thread.
template <int kD>
__device__ __forceinline__ void AddPartials(const AttentionProblem& p,
                                            const AttentionGradients& grad, int b, int g, int begin,
                                            int end, const float* sums, int64_t stride,
                                            int segments, int slice) {
  constexpr int kQuads = kPartialRow<kD> / 4;
  const int count = (end - begin) * kQuads;
  for (int i = slice * blockDim.x + threadIdx.x; i < count; i += kAddSlices * blockDim.x) {
    const int row = i / kQuads, column = i % kQuads * 4;
    const bool is_v = column >= kD;
    const int c = is_v ? column - kD : column;
    KeyRows out = grad.dk;
    if (is_v) out = grad.dv;
    if (c >= out.width) continue;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 4
    for (int segment = 0; segment < segments; ++segment) {
      const auto part = reinterpret_cast<const float4*>(sums + segment * stride)[i];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    const int key = begin + row;
    const float2 left = out.Turned({sum.x, sum.y}, key, c),
                 right = out.Turned({sum.z, sum.w}, key, c + 2);
    *reinterpret_cast<uint2*>(out.At(p, b, key, g) + c) = {Pack(left.x, left.y),
                                                           Pack(right.x, right.y)};
  }
}

// Adds the segments of a key tile. Grid: slices · key tiles · B · G.
template <int kD, int kGroups>
__global__ void AddSegmentsKernel(Begin start, AttentionProblem p, AttentionGradients grad,
                                  int segments, const float* partial) {
  start.WaitForPrevious();
  constexpr int kKeys = kGroups * kKeyTile;
  constexpr int64_t kStride = int64_t{kKeys} * kPartialRow<kD>;
  const int key_tiles = CeilDiv(p.keys, kKeys);
  const int slice = blockIdx.x % kAddSlices, index = blockIdx.x / kAddSlices;
  const int begin = index % key_tiles * kKeys, bg = index / key_tiles;
  AddPartials<kD>(p, grad, bg / p.groups, bg % p.groups, begin, min(begin + kKeys, p.keys),
                  partial + index * segments * kStride, kStride, segments, slice);
}

}  // namespace nsa::cuda
