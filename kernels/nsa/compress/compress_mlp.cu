// Forward of φ mlp on CUDA in one kernel. A thread block has a tile of rows and adds up W1·x over
// chunks of 64 of the l·width inputs, which it copies to shared memory ahead of the products. The
// last row of the tile is no row of x but pe, so that W1·pe, which belongs to every row's sum, is
// computed beside them. Where there are few rows, four groups of warps share the chunks and add up
// their sums at the end. The second layer follows in the same thread block. Where both layers'
// weights do not fit into shared memory, W2 takes the place of W1 once that has been multiplied.
#include "kernels/nsa/compress/compress_mlp.cuh"

namespace nsa::cuda {
namespace {

constexpr int kChunk = 64;  // inputs of a chunk

struct PhiForward {
  const bf16 *x, *pe, *w1, *b1, *w2, *b2;
  bf16 *hidden, *y;
};
struct PhiForwardArgs {
  CompressProblem p;
  PhiForward tensor[kMostCompressed];
};

// Where a row of the tile reads its inputs: token r from `at` + r·step on. Null: the row is empty.
struct RowSource {
  const bf16* at;
  int64_t step;
};

// The warps of a group: 16 rows each, and half of the columns where there are 32 or more.
template <int kWidth, int kRows>
struct ForwardWarps {
  static constexpr int kDown = kRows / 16, kAcross = kWidth >= 32 ? 2 : 1;
  static constexpr int kThreads = kDown * kAcross * kWarp;
  static constexpr int kTiles = kWidth / kAcross / 8;  // n-tiles per warp
  static constexpr int kGroups = kRows == 32 && kWidth <= 64 ? 4 : 1;
  static constexpr int kStages = kGroups > 1 ? 3 : 4;              // of chunks in shared memory
  static constexpr int kSums = (kGroups - 1) * kTiles * kThreads;  // of the other groups
};
template <int kWidth, int kRows>
using ForwardSum = float[ForwardWarps<kWidth, kRows>::kTiles][4];

// Whether W2 has a place of its own in shared memory.
template <int kWidth>
constexpr bool kOwnW2 = kWidth <= 128;

template <int kWidth, int kRows>
struct alignas(128) ForwardShared {
  using Warps = ForwardWarps<kWidth, kRows>;

  bf16 x[Warps::kStages][Warps::kGroups][kRows * kChunk];  // after the products Sums()
  bf16 w1[Warps::kStages][Warps::kGroups][kWidth * kChunk];
  bf16 own_w2[kOwnW2<kWidth> ? kWidth * kWidth : 8];
  bf16 act[kRows * kWidth];
  RowSource rows[kRows];
  float bias[kWidth];  // b1 + W1·pe

  // [group − 1, n-tile, thread]
  __device__ __forceinline__ float4* Sums() { return reinterpret_cast<float4*>(x); }
  static_assert(sizeof(x) >= sizeof(float4) * Warps::kSums);
  __device__ __forceinline__ bf16* W2() {
    static_assert(sizeof(w1) >= 2 * kWidth * kWidth || kOwnW2<kWidth>);
    return kOwnW2<kWidth> ? own_w2 : w1[0][0];
  }
};

template <int kRows>
__device__ __forceinline__ void FindRows(const CompressProblem& p, const PhiForward& t, int row0,
                                         RowSource* rows) {
  const bf16* const x = t.x + p.InX();
  for (int i = threadIdx.x; i < kRows; i += blockDim.x) {
    RowSource source{nullptr, 0};
    if (i == kRows - 1) {
      source = {t.pe, p.width};
    } else if (row0 + i < p.rows()) {
      source = {x + RowCursor<1>(p, row0 + i).TokenAt(p, 0), int64_t{p.groups} * p.width};
    }
    rows[i] = source;
  }
}

// Chunks `round`·kGroups and following of the inputs, and of the rows of W1; zeros after the last.
template <int kWidth, int kRows>
__device__ __forceinline__ void CopyChunks(const CompressProblem& p, const PhiForward& t, int round,
                                           ForwardShared<kWidth, kRows>& shared) {
  constexpr int kPieces = kChunk / 8, kGroups = ForwardWarps<kWidth, kRows>::kGroups;
  const int stage = round % ForwardWarps<kWidth, kRows>::kStages, in = p.in();
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int first = (round * kGroups + group) * kChunk;
    for (int i = threadIdx.x; i < kRows * kPieces; i += blockDim.x) {
      const int row = i / kPieces, piece = i % kPieces, k = first + piece * 8;
      const RowSource source = shared.rows[row];
      CopyAsync16(Tile<kChunk>::At(shared.x[stage][group], row, piece),
                  source.at + k / kWidth * source.step + k % kWidth,
                  source.at != nullptr && k < in);
    }
    for (int i = threadIdx.x; i < kWidth * kPieces; i += blockDim.x) {
      const int unit = i / kPieces, piece = i % kPieces, k = first + piece * 8;
      CopyAsync16(Tile<kChunk>::At(shared.w1[stage][group], unit, piece), t.w1 + unit * in + k,
                  k < in);
    }
  }
}

// sum[row, unit] += the products of one chunk.
template <int kTiles>
__device__ __forceinline__ void MultiplyChunk(const bf16* x, const bf16* w1, int row, int column,
                                              int lane, float (&sum)[kTiles][4]) {
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    uint32_t a[4];
    LoadA<kChunk>(a, x, row, step, lane);
#pragma unroll
    for (int pair = 0; pair < kTiles / 2; ++pair) {
      uint32_t b[4];
      LoadBByRow<kChunk>(b, w1, column + 16 * pair, step, lane);
      Mma(sum[2 * pair], a, b[0], b[1]);
      Mma(sum[2 * pair + 1], a, b[2], b[3]);
    }
  }
}

// Adds the sums of the other groups to those of group 0, in order.
template <int kWidth, int kRows>
__device__ __forceinline__ void AddGroups(int group, int thread,
                                          ForwardShared<kWidth, kRows>& shared,
                                          ForwardSum<kWidth, kRows>& sum) {
  using Warps = ForwardWarps<kWidth, kRows>;
  if constexpr (Warps::kGroups > 1) {
    __syncthreads();  // the sums take the place of inputs
#pragma unroll
    for (int n = 0; n < Warps::kTiles && group > 0; ++n) {
      shared.Sums()[((group - 1) * Warps::kTiles + n) * Warps::kThreads + thread] = {
          sum[n][0], sum[n][1], sum[n][2], sum[n][3]};
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Warps::kSums / Warps::kThreads && group == 0; ++i) {
      const float4 add = shared.Sums()[i * Warps::kThreads + thread];
      float(&to)[4] = sum[i % Warps::kTiles];
      to[0] += add.x, to[1] += add.y, to[2] += add.z, to[3] += add.w;
    }
  }
}

// b1 + W1·pe, from the last row of the tile, for the lane's columns.
template <int kTiles>
__device__ __forceinline__ void StoreBias(const bf16* b1, int column, int lane,
                                          const float (&sum)[kTiles][4], float* bias) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int c = column + n * 8 + 2 * (lane & 3);
    const float2 own = LoadPair(b1 + c);
    bias[c] = sum[n][2] + own.x;
    bias[c + 1] = sum[n][3] + own.y;
  }
}

// hidden = W1·u + b1 for the lane's two rows and columns, and its activation for the next product.
template <int kWidth, int kRows, int kTiles>
__device__ __forceinline__ void StoreHidden(const CompressProblem& p, const PhiForward& t, int row0,
                                            int row, int column, int lane,
                                            const float (&sum)[kTiles][4],
                                            ForwardShared<kWidth, kRows>& shared) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int c = column + n * 8 + 2 * (lane & 3);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = row + lane / 4 + 8 * half;
      const uint32_t before =
          Pack(sum[n][2 * half] + shared.bias[c], sum[n][2 * half + 1] + shared.bias[c + 1]);
      const float2 h = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&before));
      StorePair(Tile<kWidth>::At(shared.act, in_tile, c / 8) + c % 8, h.x / (1.0f + __expf(-h.x)),
                h.y / (1.0f + __expf(-h.y)));
      if (in_tile == kRows - 1 || row0 + in_tile >= p.rows()) continue;
      *reinterpret_cast<uint32_t*>(t.hidden + int64_t{row0 + in_tile} * kWidth + c) = before;
    }
  }
}

// y = W2·act + b2 for the lane's two rows and columns.
template <int kWidth, int kRows, int kTiles>
__device__ __forceinline__ void OutputLayer(const CompressProblem& p, const PhiForward& t, int row0,
                                            int row, int column, int lane,
                                            ForwardShared<kWidth, kRows>& shared) {
  bf16* const y0 = t.y + p.InY();
  float y[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    uint32_t a[4];
    LoadA<kWidth>(a, shared.act, row, step, lane);
#pragma unroll
    for (int pair = 0; pair < kTiles / 2; ++pair) {
      uint32_t b[4];
      LoadBByRow<kWidth>(b, shared.W2(), column + 16 * pair, step, lane);
      Mma(y[2 * pair], a, b[0], b[1]);
      Mma(y[2 * pair + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int c = column + n * 8 + 2 * (lane & 3);
    const float2 bias = LoadPair(t.b2 + c);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = row + lane / 4 + 8 * half;
      if (in_tile == kRows - 1 || row0 + in_tile >= p.rows()) continue;
      StorePair(y0 + int64_t{row0 + in_tile} * kWidth + c, y[n][2 * half] + bias.x,
                y[n][2 * half + 1] + bias.y);
    }
  }
}

template <int kWidth, int kRows>
__global__ void __launch_bounds__(
    ForwardWarps<kWidth, kRows>::kThreads* ForwardWarps<kWidth, kRows>::kGroups)
    MlpKernel(Begin begin, const __grid_constant__ PhiForwardArgs args) {
  using Warps = ForwardWarps<kWidth, kRows>;
  constexpr int kTiles = Warps::kTiles, kStages = Warps::kStages;
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<ForwardShared<kWidth, kRows>*>(memory);
  const CompressProblem& p = args.p;
  const PhiForward& t = args.tensor[blockIdx.y];
  const int row0 = static_cast<int>(blockIdx.x) * (kRows - 1);
  const int group = threadIdx.x / Warps::kThreads, thread = threadIdx.x % Warps::kThreads;
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int row = warp % Warps::kDown * 16, column = warp / Warps::kDown * kTiles * 8;
  if (p.at == nullptr) FindRows<kRows>(p, t, row0, shared.rows);
  begin.WaitForPrevious();
  if (p.at != nullptr) FindRows<kRows>(p, t, row0, shared.rows);
  __syncthreads();
  const int rounds = CeilDiv(p.in(), kChunk * Warps::kGroups);
  if constexpr (kOwnW2<kWidth>) CopyRows<kWidth>(shared.W2(), t.w2, kWidth, kWidth);
#pragma unroll
  for (int round = 0; round < kStages - 1; ++round) {
    if (round < rounds) CopyChunks(p, t, round, shared);
    CommitCopies();
  }
  ForwardSum<kWidth, kRows> sum = {};
  for (int round = 0; round < rounds; ++round) {
    WaitCopies<kStages - 2>();
    __syncthreads();
    if (round + kStages - 1 < rounds) CopyChunks(p, t, round + kStages - 1, shared);
    CommitCopies();
    MultiplyChunk(shared.x[round % kStages][group], shared.w1[round % kStages][group], row, column,
                  lane, sum);
  }
  if constexpr (!kOwnW2<kWidth>) {
    __syncthreads();
    CopyRows<kWidth>(shared.W2(), t.w2, kWidth, kWidth);
    CommitCopies();
  }
  AddGroups(group, thread, shared, sum);
  if (group == 0 && row == kRows - 16 && lane / 4 == 7) {
    StoreBias(t.b1, column, lane, sum, shared.bias);
  }
  __syncthreads();
  if (group == 0) StoreHidden(p, t, row0, row, column, lane, sum, shared);
  if constexpr (!kOwnW2<kWidth>) WaitCopies<0>();
  __syncthreads();
  if (group == 0) OutputLayer<kWidth, kRows, kTiles>(p, t, row0, row, column, lane, shared);
}

template <int kWidth, int kRows>
absl::Status LaunchMlp(const Exec& exec, const PhiForwardArgs& args, size_t tensors) {
  static_assert(sizeof(ForwardShared<kWidth, kRows>) <= kSharedOfA100);
  return Launch(
      exec, "compress", MlpKernel<kWidth, kRows>,
      {.grid = dim3(GridFor(args.p.rows(), kRows - 1), static_cast<unsigned int>(tensors)),
       .block = ForwardWarps<kWidth, kRows>::kThreads * ForwardWarps<kWidth, kRows>::kGroups,
       .shared = sizeof(ForwardShared<kWidth, kRows>)},
      args);
}

}  // namespace

absl::Status CompressMlp(const Exec& exec, std::span<const CompressArgs> tensors) {
  PhiForwardArgs args{ProblemOf(tensors[0]), {}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const CompressArgs& t = tensors[i];
    args.tensor[i] = {DataOf<bf16>(t.x),         DataOf<bf16>(t.params.pe),
                      DataOf<bf16>(t.params.w1), DataOf<bf16>(t.params.b1),
                      DataOf<bf16>(t.params.w2), DataOf<bf16>(t.params.b2),
                      DataOf<bf16>(t.hidden),    DataOf<bf16>(t.y)};
  }
  // A thread block with 32 rows reads W1 for half as many rows as one with 64, but there are twice
  // as many thread blocks. Up to heads of 64 its groups of warps take more memory than some GPUs
  // have.
  constexpr int kFewRows = 128 * 31;
  NSA_ASSIGN_OR_RETURN(const int32_t most, SharedBytesPerBlock());
  return ForWidth(args.p.width, [&](auto width) {
    static_assert(width > 64 || sizeof(ForwardShared<width, 64>) <= kSharedOfSmallest);
    return args.p.rows() <= kFewRows && sizeof(ForwardShared<width, 32>) <= size_t(most)
               ? LaunchMlp<width, 32>(exec, args, tensors.size())
               : LaunchMlp<width, 64>(exec, args, tensors.size());
  });
}

}  // namespace nsa::cuda
