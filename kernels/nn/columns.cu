// Splitting and joining columns on CUDA, 16 bytes a thread; bound by memory. Every width is a
// multiple of 8.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/columns.h"

namespace nsa::cuda {
namespace {

constexpr int kMaxParts = 8;

struct Parts {
  void* data[kMaxParts];
  int begin[kMaxParts + 1];  // in chunks of 8 columns
  int count;
};

constexpr int kThreads = 256;
constexpr int kBatch = 8;  // chunks that a thread has under way

// A block has kRows rows (as many as give a thread about kBatch chunks); a thread walks them in
// steps of kThreads chunks, so that its divisions are by a constant step.
template <bool kSplit>
__global__ void __launch_bounds__(kThreads)
    ColumnsKernel(uint4* wide, const __grid_constant__ Parts parts, int64_t rows, int block_rows) {
  const int width = parts.begin[parts.count];
  const int64_t row0 = int64_t{1} * blockIdx.x * block_rows;
  const int chunks = static_cast<int>(min(int64_t{1} * block_rows, rows - row0)) * width;
  uint4* wide_rows = wide + row0 * width;
  for (int base = threadIdx.x; base < chunks; base += kBatch * kThreads) {
    uint4* narrow[kBatch];
    uint4 value[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = min(base + j * kThreads, chunks - 1);
      const int row = i / width, column = i % width;
      int part = 0;
      while (column >= parts.begin[part + 1]) ++part;
      const int part_width = parts.begin[part + 1] - parts.begin[part];
      narrow[j] = static_cast<uint4*>(parts.data[part]) + (row0 + row) * part_width + column -
                  parts.begin[part];
      value[j] = kSplit ? wide_rows[i] : *narrow[j];
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kThreads;
      if (i >= chunks) break;
      if constexpr (kSplit) {
        *narrow[j] = value[j];
      } else {
        wide_rows[i] = value[j];
      }
    }
  }
}

template <bool kSplit, class Tensors>
absl::Status Run(const Exec& exec, int64_t rows, const void* wide, const Tensors& tensors,
                 const char* what) {
  Parts parts{};
  if (tensors.size() > kMaxParts) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", tensors.size(), " parts (at most ",
                                                   kMaxParts, "); call it twice"));
  }
  for (const auto& tensor : tensors) {
    NSA_RETURN_IF_ERROR(CheckMultipleOf8(what, "width", tensor.size / rows));
    parts.data[parts.count] = const_cast<void*>(static_cast<const void*>(tensor.data));
    parts.begin[parts.count + 1] =
        parts.begin[parts.count] + static_cast<int>(tensor.size / rows / 8);
    ++parts.count;
  }
  const int block_rows = std::max(1, kThreads * kBatch / parts.begin[parts.count]);
  ColumnsKernel<kSplit><<<GridFor(rows, block_rows), kThreads, 0, StreamOf(exec)>>>(
      static_cast<uint4*>(const_cast<void*>(wide)), parts, rows, block_rows);
  return CheckLaunch(what);
}

}  // namespace

absl::Status SplitColumns(const Exec& exec, const SplitColumnsArgs& args) {
  return Run<true>(exec, args.rows, args.wide.data, args.parts, "split_columns");
}

absl::Status JoinColumns(const Exec& exec, const JoinColumnsArgs& args) {
  return Run<false>(exec, args.rows, args.wide.data, args.parts, "join_columns");
}

}  // namespace nsa::cuda
