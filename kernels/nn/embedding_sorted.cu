// Tokens and their rows are sorted by token (CUB's radix sort, which is stable). A thread block
// then adds kRun sorted rows: tokens whose rows are all among them go to the table; the sum of a
// token that began before or goes on behind is a partial row. In a second launch, the thread block
// whose range contains the start of a cut token adds its partial rows.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/embedding.h"

namespace nsa::cuda {
namespace {

constexpr int kRun = 32;
constexpr int kMostThreads = 256;

// A thread block's range may start or end inside a token's run of rows. kHead: the run that started
// earlier (or fills the range). kTail: the run that continues into the next range.
enum Part { kHead, kTail, kParts };

int BitsOf(int64_t vocab) { return std::bit_width(static_cast<uint64_t>(vocab - 1)); }

absl::StatusOr<size_t> SortBytes(int64_t rows, int64_t vocab) {
  size_t bytes = 0;
  const int* none = nullptr;
  NSA_RETURN_IF_ERROR(ToStatus(
      cub::DeviceRadixSort::SortPairs(nullptr, bytes, none, static_cast<int*>(nullptr), none,
                                      static_cast<int*>(nullptr), rows, 0, BitsOf(vocab)),
      "size of a sort"));
  return bytes;
}

int64_t RangesOf(int64_t rows) { return (rows + kRun - 1) / kRun; }

// Where the parts of the workspace begin, in bytes.
struct Plan {
  Plan(int64_t rows, int64_t dim, int64_t sort_bytes) {
    const auto take = [this](int64_t size) {
      const int64_t at = bytes;
      bytes += (size + 255) / 256 * 256;
      return at;
    };
    order = take(4 * rows);
    sorted_tokens = take(4 * rows);
    sorted_rows = take(4 * rows);
    partial = take(4 * kParts * RangesOf(rows) * dim);
    sort = take(sort_bytes);
  }
  int64_t order, sorted_tokens, sorted_rows, partial, sort;
  int64_t bytes = 0;
};

__global__ void CountUp(Begin begin, int* to, int64_t size) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) to[i] = static_cast<int>(i);
}

struct Sorted {
  const int* tokens;
  const int* rows;
  int64_t size;
};

__global__ void __launch_bounds__(kMostThreads)
    SumRuns(Begin begin, Sorted sorted, const bf16* dy, float* dtable, float* partial, int dim) {
  begin.WaitForPrevious();
  const int64_t from = int64_t{kRun} * blockIdx.x;
  const int64_t to = min(from + kRun, sorted.size);
  float* const parts = partial + int64_t{kParts} * blockIdx.x * dim;
  for (int64_t first = from; first < to;) {
    const int token = sorted.tokens[first];
    int64_t last = first + 1;
    while (last < to && sorted.tokens[last] == token) ++last;
    const bool begins = first == 0 || sorted.tokens[first - 1] != token;
    const bool ends = last == sorted.size || sorted.tokens[last] != token;
    for (int c = 8 * threadIdx.x; c < dim; c += 8 * blockDim.x) {
      float sum[8] = {};
      for (int64_t i = first; i < last; ++i) {
        const Float8 row = Load8(dy + int64_t{1} * sorted.rows[i] * dim + c);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] += row.v[e];
      }
      const bool whole = begins && ends;
      float* const out = whole ? dtable + int64_t{1} * token * dim + c
                               : parts + (begins ? kTail : kHead) * dim + c;
#pragma unroll
      for (int e = 0; e < 8; ++e) out[e] = whole ? out[e] + sum[e] : sum[e];
    }
    first = last;
  }
}

__global__ void __launch_bounds__(kMostThreads)
    AddParts(Begin begin, Sorted sorted, const float* partial, float* dtable, int dim) {
  begin.WaitForPrevious();
  const int64_t from = int64_t{kRun} * blockIdx.x, behind = from + kRun;
  if (behind >= sorted.size) return;  // nothing goes on behind the last range
  const int token = sorted.tokens[behind - 1];
  if (sorted.tokens[behind] != token) return;
  // It begins in this range unless all of the range and the row before have it.
  if (sorted.tokens[from] == token && from > 0 && sorted.tokens[from - 1] == token) return;
  for (int c = threadIdx.x; c < dim; c += blockDim.x) {
    float sum = partial[(int64_t{kParts} * blockIdx.x + kTail) * dim + c];
    for (int64_t range = blockIdx.x + 1; kRun * range < sorted.size; ++range) {
      if (sorted.tokens[kRun * range] != token) break;
      sum += partial[(kParts * range + kHead) * dim + c];
    }
    dtable[int64_t{1} * token * dim + c] += sum;
  }
}

}  // namespace

int64_t SortedEmbeddingBackwardBytes(int64_t rows, int64_t vocab, int64_t dim) {
  const absl::StatusOr<size_t> sort = SortBytes(rows, vocab);
  return Plan(rows, dim, sort.ok() ? static_cast<int64_t>(*sort) : 0).bytes;
}

absl::Status SortedEmbeddingBackward(const Exec& exec, const EmbeddingBackwardArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("embedding_backward", "dim", args.dim));
  NSA_ASSIGN_OR_RETURN(size_t sort_bytes, SortBytes(args.rows, args.vocab));
  const Plan plan(args.rows, args.dim, static_cast<int64_t>(sort_bytes));
  NSA_ASSIGN_OR_RETURN(void* const workspace, WorkspaceOf(exec, plan.bytes, "embedding_backward"));
  auto* const base = static_cast<std::byte*>(workspace);
  int* const order = reinterpret_cast<int*>(base + plan.order);
  int* const tokens = reinterpret_cast<int*>(base + plan.sorted_tokens);
  int* const rows = reinterpret_cast<int*>(base + plan.sorted_rows);
  float* const partial = reinterpret_cast<float*>(base + plan.partial);
  NSA_RETURN_IF_ERROR(Launch(exec, "embedding_backward", CountUp,
                             {.grid = GridFor(args.rows, 256), .block = 256}, order, args.rows));
  NSA_RETURN_IF_ERROR(ToStatus(
      cub::DeviceRadixSort::SortPairs(base + plan.sort, sort_bytes, DataOf<int>(args.tokens),
                                      tokens, order, rows, args.rows, 0, BitsOf(args.vocab),
                                      static_cast<cudaStream_t>(exec.stream)),
      "embedding_backward: sort"));
  const Sorted sorted = {tokens, rows, args.rows};
  const int dim = static_cast<int>(args.dim);
  const auto threads = static_cast<unsigned int>(
      std::min<int64_t>(kMostThreads, (args.dim / 8 + kWarp - 1) / kWarp * kWarp));
  const LaunchShape shape = {.grid = GridFor(args.rows, kRun), .block = threads};
  NSA_RETURN_IF_ERROR(Launch(exec, "embedding_backward", SumRuns, shape, sorted,
                             DataOf<bf16>(args.dy), DataOf<float>(args.dtable), partial, dim));
  return Launch(exec, "embedding_backward", AddParts, shape, sorted, partial,
                DataOf<float>(args.dtable), dim);
}

}  // namespace nsa::cuda
