// Columns by heads on CUDA: a thread copies 16 bytes, threads beside each other those of one row of
// the whole matrix. A run of columns of a head is 32 bytes or more, a sector of the caches.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nsa/layer/head_parts.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // pieces of 16 bytes in flight in a thread

// All widths in pieces of 16 bytes.
struct Segments {
  int64_t rows = 0;
  int64_t pieces = 0;  // rows · width
  int width = 0;       // of a row
  int part = 0;        // of a row of a part
  int count = 0;
  int begin[kMostHeadSegments + 1] = {};
  int run[kMostHeadSegments] = {};  // consecutive pieces of one part

  // Where piece `i` of the whole matrix is in the parts.
  __device__ int64_t InParts(int64_t i) const {
    const int64_t row = i / width;
    const int column = static_cast<int>(i - row * width);
    int s = 0;
    while (column >= begin[s + 1]) ++s;
    const int in_segment = column - begin[s];
    const int p = in_segment / run[s];
    // Every segment before this one has 1/N of its columns in each part.
    int before = 0;
    for (int other = 0; other < s; ++other) before += run[other];
    return (p * rows + row) * part + before + in_segment - p * run[s];
  }
};

Segments SegmentsOf(int32_t parts, int64_t rows, std::span<const int64_t> widths) {
  Segments s;
  s.rows = rows;
  for (const int64_t width : widths) {
    s.run[s.count] = static_cast<int>(width / 8 / parts);
    s.begin[s.count + 1] = s.begin[s.count] + static_cast<int>(width / 8);
    ++s.count;
  }
  s.width = s.begin[s.count];
  s.part = s.width / parts;
  s.pieces = rows * s.width;
  return s;
}

// `split`: from the whole matrix to the parts; otherwise back.
template <bool split>
__global__ void __launch_bounds__(kThreads)
    HeadPartsKernel(Begin begin, const __grid_constant__ Segments s, const uint4* __restrict__ from,
                    uint4* __restrict__ to) {
  begin.WaitForPrevious();
  const int64_t first = int64_t{1} * blockIdx.x * kThreads * kUnroll + threadIdx.x;
  uint4 raw[kUnroll];
  int64_t in_parts[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kThreads;
    if (i >= s.pieces) break;
    in_parts[u] = s.InParts(i);
    raw[u] = __ldg(from + (split ? i : in_parts[u]));
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kThreads;
    if (i >= s.pieces) break;
    to[split ? in_parts[u] : i] = raw[u];
  }
}

template <bool split>
absl::Status Run(const Exec& exec, const char* what, const Segments& s, const ConstTensor& from,
                 const Tensor& to) {
  return Launch(exec, what, HeadPartsKernel<split>,
                {.grid = GridFor(s.pieces, kThreads * kUnroll), .block = kThreads}, s,
                DataOf<uint4>(from), DataOf<uint4>(to));
}

}  // namespace

absl::Status SplitHeads(const Exec& exec, const SplitHeadsArgs& args) {
  return Run<true>(exec, "split_heads", SegmentsOf(args.parts, args.rows, args.widths), args.whole,
                   args.split);
}

absl::Status JoinHeads(const Exec& exec, const JoinHeadsArgs& args) {
  return Run<false>(exec, "join_heads", SegmentsOf(args.parts, args.rows, args.widths), args.split,
                    args.whole);
}

}  // namespace nsa::cuda
