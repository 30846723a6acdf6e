// What the thread blocks of φ mlp's second backward kernel compute from d_hidden: sums over ranges
// of rows, and the gradient of the input (compress_mlp_backward.cu has the equations).
#pragma once

#include "kernels/nn/rope_angles.cuh"
#include "kernels/nsa/compress/compress_mlp.cuh"

namespace nsa::cuda {

struct PhiBackward {
  const bf16 *x, *pe, *w1, *w2, *hidden, *dy;
  bf16 *d_hidden, *act, *dx;  // act: silu(hidden)
  float* sums;                // of PhiScratch
  float *d_pe, *d_w1, *d_b1, *d_w2, *d_b2;
  int64_t dx_stride;        // elements from a token to the next
  const float2* dx_angles;  // CompressBackwardArgs::dx_angles, may be null
};
struct PhiBackwardArgs {
  CompressProblem p;
  int ranges;
  PhiBackward tensor[kMostCompressed];
};

// --- sums over ranges of rows ---

constexpr int kSumRows = 64;   // rows of a chunk
constexpr int kSumStages = 3;  // chunks in shared memory

// A thread block of the second kernel: one warp for 16 units, or 16 rows of dx.
template <int kWidth>
constexpr int kGradientThreads = kWidth / 16 * kWarp;

// Elements of a range's sums for one token: the products of units and columns, then the units'.
template <int kWidth>
constexpr int kSumSize = (kWidth + 1) * kWidth;

template <int kWidth>
struct alignas(128) SumShared {
  bf16 left[kSumStages][kSumRows * kWidth];   // [row][unit]
  bf16 right[kSumStages][kSumRows * kWidth];  // [row][column]
};

// The rows [row, end) of `left`, contiguous, and of `right`: tokens r of x, or contiguous for
// r < 0. A thread copies the same columns of every kRowStep-th row. Rows after the last are zero.
template <int kWidth>
class RowCopier {
 public:
  __device__ __forceinline__ RowCopier(const CompressProblem& p, const bf16* left,
                                       const bf16* right, int r, int row, int end)
      : p_(p),
        left_(left),
        right_(right),
        r_(r),
        end_(end),
        row_(row + static_cast<int>(threadIdx.x) / kPieces),
        cursor_(p, row_) {}

  // The next kSumRows rows.
  __device__ __forceinline__ void Copy(bf16* left, bf16* right) {
    const int chunk = threadIdx.x % kPieces;
#pragma unroll
    for (int in_tile = threadIdx.x / kPieces; in_tile < kSumRows; in_tile += kRowStep) {
      const bool valid = row_ < end_;
      const int64_t own = int64_t{row_} * kWidth;
      CopyAsync16(Tile<kWidth>::At(left, in_tile, chunk), left_ + own + chunk * 8, valid);
      CopyAsync16(Tile<kWidth>::At(right, in_tile, chunk),
                  right_ + (r_ < 0 ? own : cursor_.TokenAt(p_, r_)) + chunk * 8, valid);
      row_ += kRowStep;
      cursor_.Advance(p_);
    }
  }

 private:
  static constexpr int kPieces = kWidth / 8, kRowStep = kGradientThreads<kWidth> / kPieces;

  const CompressProblem& p_;
  const bf16 *left_, *right_;
  const int r_, end_;
  int row_;
  RowCursor<kRowStep> cursor_;
};

// A fragment of the transpose: rows are columns [column, + 16) of the tile, k its rows [row, + 16).
template <int kWidth>
__device__ __forceinline__ void LoadATransposed(uint32_t (&a)[4], const bf16* tile, int row,
                                                int column, int lane) {
  LoadMatrix4Transposed(a, Tile<kWidth>::At(tile, row + (lane & 7) + ((lane >> 4) << 3),
                                            column / 8 + ((lane >> 3) & 1)));
}

// product += leftᵀ·right over the rows of a chunk for the warp's 16 units; ones += leftᵀ·1.
template <int kWidth>
__device__ __forceinline__ void AddRows(const bf16* left, const bf16* right, int unit, int lane,
                                        float (&product)[kWidth / 8][4], float (&ones)[4]) {
  constexpr uint32_t kOnes = 0x3f803f80;  // two bf16
#pragma unroll
  for (int step = 0; step < kSumRows / 16; ++step) {
    uint32_t a[4];
    LoadATransposed<kWidth>(a, left, 16 * step, unit, lane);
    Mma(ones, a, kOnes, kOnes);
#pragma unroll
    for (int pair = 0; pair < kWidth / 16; ++pair) {
      uint32_t b[4];
      LoadBByColumn<kWidth>(b, right, 16 * step, pair, lane);
      Mma(product[2 * pair], a, b[0], b[1]);
      Mma(product[2 * pair + 1], a, b[2], b[3]);
    }
  }
}

// The sums of one range of rows for token r of a block, or for the output layer where r = l.
template <int kWidth>
__device__ __forceinline__ void SumRange(const PhiBackwardArgs& args, const PhiBackward& t, int r,
                                         int range, SumShared<kWidth>& shared) {
  const CompressProblem& p = args.p;
  const bool input_layer = r < p.l;
  const int unit = threadIdx.x / kWarp * 16, lane = threadIdx.x % kWarp;
  const int first = static_cast<int>(int64_t{p.rows()} * range / args.ranges);
  const int end = static_cast<int>(int64_t{p.rows()} * (range + 1) / args.ranges);
  RowCopier<kWidth> copier(p, input_layer ? t.d_hidden : t.dy, input_layer ? t.x : t.act,
                           input_layer ? r : -1, first, end);
  const int chunks = CeilDiv(end - first, kSumRows);
#pragma unroll
  for (int chunk = 0; chunk < kSumStages - 1; ++chunk) {
    if (chunk < chunks) copier.Copy(shared.left[chunk], shared.right[chunk]);
    CommitCopies();
  }
  float product[kWidth / 8][4] = {}, ones[4] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    WaitCopies<kSumStages - 2>();
    __syncthreads();
    const int next = (chunk + kSumStages - 1) % kSumStages;
    if (chunk + kSumStages - 1 < chunks) copier.Copy(shared.left[next], shared.right[next]);
    CommitCopies();
    AddRows<kWidth>(shared.left[chunk % kSumStages], shared.right[chunk % kSumStages], unit, lane,
                    product, ones);
  }
  float* const out = t.sums + (int64_t{range} * (p.l + 1) + r) * kSumSize<kWidth>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = unit + lane / 4 + 8 * half;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      *reinterpret_cast<float2*>(out + row * kWidth + n * 8 + 2 * (lane & 3)) = {
          product[n][2 * half], product[n][2 * half + 1]};
    }
    if (lane % 4 == 0) out[kWidth * kWidth + row] = ones[2 * half];  // its columns are the same
  }
}

// --- gradient of the input ---

// A row of a tile of dx: the tokens [i·d, i·d + d) of group g in batch row b.
struct InputRow {
  int hidden;  // row of block i
  int i;       // may be after the last block; a large negative number in rows after the last
  int64_t dx;  // where the token goes; negative: nowhere
};

// Steps in shared memory: as many as there is room for.
template <int kWidth>
constexpr int kInputStages = kWidth > 128 ? 1 : 2;

template <int kWidth>
struct alignas(128) InputShared {
  bf16 d_hidden[kInputStages<kWidth>][kWidth * kWidth];  // [row][unit]
  bf16 w1[kInputStages<kWidth>][kWidth * kWidth];        // [unit][column]
  InputRow rows[kWidth];
};

// Tokens t = i·d + residue of `kWidth` rows from row0 on.
template <int kWidth>
__device__ __forceinline__ void FindTokens(const CompressProblem& p, int64_t stride, int row0,
                                           int residue, InputRow* rows) {
  for (int in_tile = threadIdx.x; in_tile < kWidth; in_tile += blockDim.x) {
    const int row = row0 + in_tile, per_sequence = CeilDiv(p.seq_len, p.d);
    const int g = row % p.groups, i = row / p.groups % per_sequence;
    const int b = row / p.groups / per_sequence, token = i * p.d + residue;
    InputRow found{(b * p.blocks + i) * p.groups + g, i, -1};
    if (b >= p.batch) {
      found.i = -p.l;
    } else if (token < p.seq_len) {
      found.dx = (int64_t{b} * p.seq_len + token) * stride + g * kWidth;
    }
    rows[in_tile] = found;
  }
}

// d_hidden of the blocks j before those of the rows, and the part of W1 for their tokens.
template <int kWidth>
__device__ __forceinline__ void CopyStep(const CompressProblem& p, const PhiBackward& t, int j,
                                         int residue, InputShared<kWidth>& shared) {
  constexpr int kPieces = kWidth / 8;
  const int stage = j % kInputStages<kWidth>;
  for (int piece = threadIdx.x; piece < kWidth * kPieces; piece += blockDim.x) {
    const int in_tile = piece / kPieces, chunk = piece % kPieces;
    const InputRow row = shared.rows[in_tile];
    const bool valid = row.i - j >= 0 && row.i - j < p.blocks;
    CopyAsync16(Tile<kWidth>::At(shared.d_hidden[stage], in_tile, chunk),
                t.d_hidden + int64_t{row.hidden - j * p.groups} * kWidth + chunk * 8, valid);
  }
  CopyRows<kWidth>(shared.w1[stage], t.w1 + (residue + j * p.d) * kWidth, p.in(), kWidth);
}

// dx of one tile of rows for the tokens t with t mod d = residue.
template <int kWidth>
__device__ __forceinline__ void InputGradient(const CompressProblem& p, const PhiBackward& t,
                                              int tile, int residue, InputShared<kWidth>& shared) {
  const int row = threadIdx.x / kWarp * 16, lane = threadIdx.x % kWarp, steps = p.l / p.d;
  constexpr int kStages = kInputStages<kWidth>, kAhead = kStages - 1;
  FindTokens<kWidth>(p, t.dx_stride, tile * kWidth, residue, shared.rows);
  __syncthreads();
  if constexpr (kAhead > 0) CopyStep(p, t, 0, residue, shared);
  CommitCopies();
  float dx[kWidth / 8][4] = {};
  for (int j = 0; j < steps; ++j) {
    if (j + kAhead < steps) CopyStep(p, t, j + kAhead, residue, shared);
    CommitCopies();
    WaitCopies<kAhead>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step) {
      uint32_t a[4];
      LoadA<kWidth>(a, shared.d_hidden[j % kStages], row, step, lane);
#pragma unroll
      for (int pair = 0; pair < kWidth / 16; ++pair) {
        uint32_t b[4];
        LoadBByColumn<kWidth>(b, shared.w1[j % kStages], 16 * step, pair, lane);
        Mma(dx[2 * pair], a, b[0], b[1]);
        Mma(dx[2 * pair + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const InputRow& found = shared.rows[row + lane / 4 + 8 * half];
    if (found.dx < 0) continue;
    const int64_t pair0 = (int64_t{found.i} * p.d + residue) * (kWidth / 2) + (lane & 3);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      float2 value = {dx[n][2 * half], dx[n][2 * half + 1]};
      if (t.dx_angles != nullptr) value = RotatedBack(value, __ldg(t.dx_angles + pair0 + 4 * n));
      StorePair(t.dx + found.dx + n * 8 + 2 * (lane & 3), value.x, value.y);
    }
  }
}

}  // namespace nsa::cuda
