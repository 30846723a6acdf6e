// Backward of the gate on CUDA. A thread block processes 128 (token, group) rows at a time, each
// warp 16 of them; with keys of 192, which leave room for 64 rows, half of the warps have none in
// the MLP:
//
//   δ_c      = Σ d_o·o_c per head,        d_gate_c = Σ δ_c over the heads     limited by memory
//   dz       through softmax or sigmoid,  d_before = (W2ᵀ dz)·silu'
//   dq_mean  = W1ᵀ·d_before,              dW1 += d_before·xᵀ                  on the matrix unit
//
// The branches get lse_c − ln gate_c and δ_c of each head (gate.h).
//
// fp32 operands are split into two bf16 for the matrix unit (gate_mlp.cuh). The gradients of the
// parameters are summed in registers; each thread block writes one partial sum, and a last kernel
// adds these in order.
#include "kernels/nsa/gate/gate.h"
#include "kernels/nsa/gate/gate_launch.cuh"

namespace nsa::cuda {
namespace {

struct GateBackwardPointers {
  const float* gates;
  const bf16* d_o;
  const float* lse[kBranches];  // of the present branches, as stats
  float2* stats[kBranches];
  bf16* dq_mean;
  float* partial;  // [blocks, gradients of fc1_w, fc1_b, fc2_w, fc2_b]
};

template <int kDk, int kN>
struct GateShared {
  static constexpr int kGroups = kDk > 128 ? kGateWarps / 2 : kGateWarps;  // of rows, at a time
  static constexpr int kRows = kGroups * kGateRows;
  static constexpr int kHidden = kDk / 2;
  static constexpr int kUnits = kHidden < 16 ? 16 : kHidden;
  static constexpr int kUnitColumns = kUnits > 64 ? 128 : kUnits;  // of a tile

  alignas(128) bf16 x[2][kRows * kDk];                  // upper and lower halves
  alignas(128) bf16 d_before[2][kRows * kUnitColumns];  // the same
  GateParameters<kDk, kN> m;
  bf16 w1_out[kDk * GateParameters<kDk, kN>::kOutStride];
  float gates[kRows][4];
  float log_gates[kRows][4];  // base 2
  float d_gates[kRows][4];
};

// Gradients of the small parameters (fc1_b, fc2_w, fc2_b), summed over the rows of a lane.
template <int kDk, int kN>
struct SmallSums {
  float b1[kDk / 16][2] = {};
  float w2[kN][kDk / 16][2] = {};
  float b2[kN] = {};
};

// Gradients of the gates and statistics of the branches' rows for the thread block's rows, 16 lanes
// per row; dv/8 consecutive lanes have the same head. Rows after the last one in its group
// get zero gradients of the gates.
template <int kN>
__device__ __forceinline__ void BranchGradients(const GateProblem& p, const GateBackwardPointers& g,
                                                int64_t row0, int rows, const float (*log_gates)[4],
                                                float (*d_gates)[4]) {
  constexpr int kLanes = 16, kBatch = 3, kApart = kGateWarps * kWarp / kLanes;
  const int lane = threadIdx.x % kLanes, per_head = p.dv / 8, per_row = p.h * per_head;
  const int head_shift = 31 - __clz(per_head);  // a power of two
  static_assert(kApart % kGateRows == 0);
  for (int row = threadIdx.x / kLanes; row < RoundUp(rows, kGateRows); row += kApart) {
    // The two rows of a warp do the same iterations, as the shuffles below require: where only the
    // first is valid, the second reads the same memory.
    const int iterated = (row & ~1) < rows ? per_row : 0;
    const int64_t first = (row0 + min(row, rows - 1)) * per_row;
    float sum[kN] = {};
    for (int base = 0; base < iterated; base += kBatch * kLanes) {
      uint4 d_o[kBatch], o[kBatch][kN];
      float lse[kBatch][kN];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int64_t at = first + min(base + j * kLanes + lane, per_row - 1);
        d_o[j] = __ldg(reinterpret_cast<const uint4*>(g.d_o) + at);
#pragma unroll
        for (int c = 0; c < kN; ++c) {
          o[j][c] = __ldg(reinterpret_cast<const uint4*>(p.branch[c]) + at);
          lse[j][c] = __ldg(g.lse[c] + (at >> head_shift));
        }
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (base + j * kLanes >= per_row) break;
        const int i = base + j * kLanes + lane;
        const bool stores = i < per_row && row < rows && (lane & (per_head - 1)) == 0;
        const Float8 d = AsFloats(d_o[j]);
#pragma unroll
        for (int c = 0; c < kN; ++c) {
          const Float8 x = AsFloats(o[j][c]);
          float delta = 0;
#pragma unroll
          for (int e = 0; e < 8; ++e) delta = fmaf(d.v[e], x.v[e], delta);
          for (int offset = 1; offset < per_head; offset <<= 1) {
            delta += __shfl_xor_sync(0xffffffffu, delta, offset);
          }
          if (i < per_row) sum[c] += delta;
          // A gate of 0 has the logarithm −inf: the shift becomes +inf, and every weight 0.
          if (stores) {
            g.stats[c][(first + i) >> head_shift] = {fmaf(lse[j][c], kLog2E, -log_gates[row][c]),
                                                     delta};
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      for (int offset = per_head; offset < kLanes; offset <<= 1) {
        sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], offset);
      }
      if (lane == 0) d_gates[row][c] = row < rows ? sum[c] : 0.0f;
    }
  }
}

// dz of a row, from the gradients of its gates.
template <int kN>
__device__ __forceinline__ void LogitGradients(bool sigmoid, const float (&gate)[4],
                                               const float (&d_gate)[4], float (&dz)[kN]) {
  float mean = 0;
#pragma unroll
  for (int c = 0; c < kN; ++c) mean = fmaf(gate[c], d_gate[c], mean);
#pragma unroll
  for (int c = 0; c < kN; ++c) {
    dz[c] = gate[c] * (sigmoid ? d_gate[c] * (1.0f - gate[c]) : d_gate[c] - mean);
  }
}

// Replaces the hidden units `before` of a lane's rows by their gradients, and adds the gradients of
// the small parameters to `sums`.
template <int kDk, int kN>
__device__ __forceinline__ void HiddenGradients(const GateParameters<kDk, kN>& m,
                                                const float (&dz)[2][kN], int lane,
                                                GateUnits<kDk>& before, SmallSums<kDk, kN>& sums) {
#pragma unroll
  for (int n = 0; n < kDk / 16; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int unit = n * 8 + 2 * (lane & 3) + (e & 1);
      const float x = before[n][e], s = SigmoidOf(x);
      float d_act = 0;
#pragma unroll
      for (int c = 0; c < kN; ++c) {
        d_act = fmaf(dz[e >> 1][c], m.w2[c * (kDk / 2) + unit], d_act);
        sums.w2[c][n][e & 1] = fmaf(dz[e >> 1][c], x * s, sums.w2[c][n][e & 1]);
      }
      before[n][e] = d_act * s * (1.0f + x * (1.0f - s));
      sums.b1[n][e & 1] += before[n][e];
    }
  }
  if ((lane & 3) != 0) return;
#pragma unroll
  for (int c = 0; c < kN; ++c) sums.b2[c] += dz[0][c] + dz[1][c];
}

// dq_mean = W1ᵀ·d_before of the warp's rows.
template <int kDk, int kN>
__device__ __forceinline__ void MeanGradients(const GateProblem& p, const bf16* w1_out,
                                              const GateUnits<kDk>& d_before, int64_t row0,
                                              int lane, bf16* dq_mean) {
  constexpr int kTiles = kDk / 16, kSteps = CeilDiv(kTiles, 2);
  constexpr int kStride = GateParameters<kDk, kN>::kOutStride;
  uint32_t high[kSteps][4] = {}, low[kSteps][4] = {};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Halves halves = Split(d_before[n][2 * i], d_before[n][2 * i + 1]);
      high[n / 2][n % 2 * 2 + i] = halves.high;
      low[n / 2][n % 2 * 2 + i] = halves.low;
    }
  }
#pragma unroll
  for (int column = 0; column < kDk; column += 8) {
    float c[4] = {0, 0, 0, 0};
    const bf16* units = &w1_out[(column + lane / 4) * kStride + 2 * (lane & 3)];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto b0 = *reinterpret_cast<const uint32_t*>(units + 16 * step);
      const uint32_t b1 =
          2 * step + 1 < kTiles ? *reinterpret_cast<const uint32_t*>(units + 16 * step + 8) : 0u;
      Mma(c, high[step], b0, b1);
      Mma(c, low[step], b0, b1);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = row0 + lane / 4 + 8 * i;
      if (row >= p.rows) continue;
      *reinterpret_cast<uint32_t*>(dq_mean + row * kDk + column + 2 * (lane & 3)) =
          Pack(c[2 * i], c[2 * i + 1]);
    }
  }
}

// Stores a lane's means and hidden gradients in the tiles of the thread block.
template <int kDk, int kN>
__device__ __forceinline__ void StoreTiles(GateShared<kDk, kN>& shared, const GateMeans<kDk>& x,
                                           const GateUnits<kDk>& d_before, int warp, int lane) {
  constexpr int kOwn = kDk / 4, kColumns = GateShared<kDk, kN>::kUnitColumns;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp * kGateRows + lane / 4 + 8 * i;
#pragma unroll
    for (int c = 0; c < kOwn; c += 4) {
      const int column = (lane & 3) * kOwn + c;
      const Halves first = Split(x[i][c], x[i][c + 1]), second = Split(x[i][c + 2], x[i][c + 3]);
      const auto put = [&](bf16* tile, uint32_t a, uint32_t b) {
        *reinterpret_cast<uint2*>(Tile<kDk>::At(tile, row, column / 8) + column % 8) = {a, b};
      };
      put(shared.x[0], first.high, second.high);
      put(shared.x[1], first.low, second.low);
    }
#pragma unroll
    for (int n = 0; n < kDk / 16; ++n) {
      const Halves halves = Split(d_before[n][2 * i], d_before[n][2 * i + 1]);
      const auto put = [&](bf16* tile, uint32_t a) {
        *reinterpret_cast<uint32_t*>(Tile<kColumns>::At(tile, row, n) + 2 * (lane & 3)) = a;
      };
      put(shared.d_before[0], halves.high);
      put(shared.d_before[1], halves.low);
    }
  }
}

// dW1ᵀ += xᵀ·d_before over the thread block's rows, in tasks of 16 columns × 16 units.
template <int kDk, int kN>
struct WeightSums {
  static constexpr int kColumns = GateShared<kDk, kN>::kUnitColumns;
  static constexpr int kPairs = GateShared<kDk, kN>::kUnits / 16;
  static constexpr int kTasks = kDk / 16 * kPairs;
  static constexpr int kOwn = CeilDiv(kTasks, kGateWarps);

  float sum[kOwn][2][4] = {};

  // The first `rows` rows, a multiple of 16.
  __device__ __forceinline__ void Add(const GateShared<kDk, kN>& shared, int rows, int warp,
                                      int lane) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int task = warp + i * kGateWarps;
      if (task >= kTasks) break;
      const int column = task / kPairs, pair = task % kPairs;
#pragma unroll 2
      for (int row = 0; row < rows; row += 16) {
        uint32_t a[2][4], b[2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          LoadMatrix4Transposed(a[half],
                                Tile<kDk>::At(shared.x[half], row + (lane & 7) + ((lane >> 4) << 3),
                                              2 * column + ((lane >> 3) & 1)));
          LoadBByColumn<kColumns>(b[half], shared.d_before[half], row, pair, lane);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          Mma(sum[i][n], a[0], b[0][2 * n], b[0][2 * n + 1]);
          Mma(sum[i][n], a[0], b[1][2 * n], b[1][2 * n + 1]);
          Mma(sum[i][n], a[1], b[0][2 * n], b[0][2 * n + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void Store(float* out, int warp, int lane) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int task = warp + i * kGateWarps;
      if (task >= kTasks) break;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = task / kPairs * 16 + lane / 4 + 8 * (e >> 1);
          const int unit = task % kPairs * 16 + n * 8 + 2 * (lane & 3) + (e & 1);
          if (unit < kDk / 2) out[unit * kDk + column] = sum[i][n][e];
        }
      }
    }
  }
};

// Adds up the sums of the small parameters in the thread block: over the lanes of a warp by a fixed
// tree, then over the warps in order. `scratch` holds one row of sums per warp.
template <int kDk, int kN>
__device__ void StoreSmallSums(SmallSums<kDk, kN>& sums, float* scratch, float* out, int warp,
                               int lane) {
  constexpr int kHidden = kDk / 2, kSmall = kHidden + kN * kHidden + kN;
  const auto reduce = [&](float value) {
    for (int offset = 4; offset < kWarp; offset <<= 1) {
      value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    return value;
  };
  float* mine = scratch + warp * kSmall;
#pragma unroll
  for (int n = 0; n < kDk / 16; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int unit = n * 8 + 2 * (lane & 3) + e;
      const float b1 = reduce(sums.b1[n][e]);
      if (lane < 4) mine[unit] = b1;
#pragma unroll
      for (int c = 0; c < kN; ++c) {
        const float w2 = reduce(sums.w2[c][n][e]);
        if (lane < 4) mine[kHidden + c * kHidden + unit] = w2;
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kN; ++c) {
    const float b2 = reduce(sums.b2[c]);
    if (lane == 0) mine[kHidden + kN * kHidden + c] = b2;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSmall; i += blockDim.x) {
    float sum = 0;
    for (int w = 0; w < kGateWarps; ++w) sum += scratch[w * kSmall + i];
    out[i] = sum;
  }
}

template <int kDk, int kN>
__global__ void __launch_bounds__(kGateWarps* kWarp)
    GateBackwardKernel(Begin begin, GateProblem p, GateBackwardPointers g) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<GateShared<kDk, kN>*>(memory);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  using Shared = GateShared<kDk, kN>;
  if constexpr (Shared::kUnits != kDk / 2) {  // columns beyond the units stay 0
    for (int i = threadIdx.x; i < Shared::kRows * Shared::kUnitColumns; i += blockDim.x) {
      shared.d_before[0][i] = shared.d_before[1][i] = __float2bfloat16(0.0f);
    }
  }
  begin.WaitForPrevious();
  shared.m.template Load<true>(p, shared.w1_out);
  const GroupRange range = GroupsOf(p);
  WeightSums<kDk, kN> weights;
  SmallSums<kDk, kN> sums;
  for (int64_t base = range.begin; base < range.end; base += Shared::kGroups) {
    const int rows = RowsFrom(p, range, base, Shared::kGroups);
    for (int i = threadIdx.x; i < Shared::kRows * kN; i += blockDim.x) {
      const float gate = i / kN < rows ? g.gates[base * kGateRows * kN + i] : 0.0f;
      shared.gates[i / kN][i % kN] = gate;
      shared.log_gates[i / kN][i % kN] = log2f(gate);
    }
    __syncthreads();
    BranchGradients<kN>(p, g, base * kGateRows, rows, shared.log_gates, shared.d_gates);
    __syncthreads();
    if (warp * kGateRows < rows) {
      const int64_t row0 = (base + warp) * kGateRows;
      GateMeans<kDk> x;
      LoadMeans<kDk>(p, row0, lane, x);
      GateUnits<kDk> units;
      HiddenUnits<kDk, kN>(shared.m, x, lane, units);
      float dz[2][kN];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp * kGateRows + lane / 4 + 8 * i;
        LogitGradients<kN>(p.sigmoid, shared.gates[row], shared.d_gates[row], dz[i]);
      }
      HiddenGradients<kDk, kN>(shared.m, dz, lane, units, sums);
      MeanGradients<kDk, kN>(p, shared.w1_out, units, row0, lane, g.dq_mean);
      StoreTiles<kDk, kN>(shared, x, units, warp, lane);
    }
    __syncthreads();
    weights.Add(shared, RoundUp(rows, kGateRows), warp, lane);
    __syncthreads();
  }
  constexpr int kSmall = kDk / 2 + kN * (kDk / 2) + kN;
  float* out = g.partial + blockIdx.x * int64_t{kDk / 2 * kDk + kSmall};
  weights.Store(out, warp, lane);
  StoreSmallSums<kDk, kN>(sums, reinterpret_cast<float*>(memory), out + kDk / 2 * kDk, warp, lane);
}

// The destinations of the gradients: the four tensors, and where each ends in the partial sums,
// which hold them one after the other.
struct GradPointers {
  float* data[4];
  int end[4];
};

// grads += Σ over the thread blocks' partial sums. Eight threads per parameter each add an eighth
// of them in order.
__global__ void GateGradsKernel(Begin begin, GradPointers grads, const float* partial, int blocks) {
  __shared__ float sums[8][kWarp];
  begin.WaitForPrevious();
  const int i = blockIdx.x * kWarp + threadIdx.x, total = grads.end[3];
  float sum = 0;
  if (i < total) {
#pragma unroll 16  // so many loads under way
    for (int block = blocks / 8 * threadIdx.y; block < blocks / 8 * (threadIdx.y + 1); ++block) {
      sum += partial[int64_t{1} * block * total + i];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= total) return;
  for (int slice = 1; slice < 8; ++slice) sum += sums[slice][threadIdx.x];
  int tensor = 0;
  while (i >= grads.end[tensor]) ++tensor;
  grads.data[tensor][i - (tensor == 0 ? 0 : grads.end[tensor - 1])] += sum;
}

}  // namespace

absl::Status GateBackward(const Exec& exec, const GateBackwardArgs& args) {
  int branches = 0;
  GateProblem p = GateProblemOf(args, &branches);
  p.q_mean = const_cast<float*>(DataOf<float>(args.q_mean));  // only read
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, PlanGateScratch(args.shape).bytes, "gate_backward"));
  GateBackwardPointers g{DataOf<float>(args.gates),  DataOf<bf16>(args.d_o),        {}, {},
                         DataOf<bf16>(args.dq_mean), static_cast<float*>(workspace)};
  for (int c = 0; c < branches; ++c) {
    g.lse[c] = DataOf<float>(args.lse[p.branch_id[c]]);
    g.stats[c] = DataOf<float2>(args.stats[p.branch_id[c]]);
  }
  NSA_RETURN_IF_ERROR(ForGate(args.shape.d_k, branches, [&](auto dk, auto n) -> absl::Status {
    constexpr int kDk = decltype(dk)::value, kN = decltype(n)::value;
    auto* kernel = GateBackwardKernel<kDk, kN>;
    constexpr int kShared = sizeof(GateShared<kDk, kN>);
    static_assert(kShared <= kSharedOfA100);
    return Launch(exec, "gate_backward", kernel,
                  {.grid = kGateBlocks, .block = kGateWarps * kWarp, .shared = kShared}, p, g);
  }));
  const int hidden = static_cast<int>(GateHidden(args.shape.d_k));
  GradPointers grads{{DataOf<float>(args.grads.fc1_w), DataOf<float>(args.grads.fc1_b),
                      DataOf<float>(args.grads.fc2_w), DataOf<float>(args.grads.fc2_b)},
                     {}};
  grads.end[0] = hidden * args.shape.d_k;
  grads.end[1] = grads.end[0] + hidden;
  grads.end[2] = grads.end[1] + branches * hidden;
  grads.end[3] = grads.end[2] + branches;
  return Launch(exec, "gate_grads", GateGradsKernel,
                {.grid = GridFor(grads.end[3], kWarp), .block = dim3(kWarp, 8)}, grads, g.partial,
                kGateBlocks);
}

}  // namespace nsa::cuda
