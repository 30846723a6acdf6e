// Gate on CUDA: a warp processes 16 (token, group) rows at a time. Limited by memory bandwidth: the
// branch outputs are read once and the combination is written once. The MLP runs on the matrix unit
// (gate_mlp.cuh); the backward pass is in gate_backward.cu. For sums over rows, each of a constant
// number of thread blocks writes one partial sum, and these are added in order.
#include <type_traits>

#include "kernels/nsa/gate/gate.h"
#include "kernels/nsa/gate/gate_launch.cuh"

namespace nsa::cuda {
namespace {

constexpr int kStatFields = kGateStats;

// Statistics of a lane's rows, in the order of GateStats. Means are kept as sums until
// GateStatsKernel divides them.
struct Stats {
  float v[kStatFields] = {0, INFINITY};

  template <int kN>
  __device__ __forceinline__ void Add(const GateProblem& p, const float (&gate)[kN]) {
    float total = 0, entropy = 0, most = 0;
#pragma unroll
    for (int c = 0; c < kN; ++c) total += gate[c];
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      const float share = total > 0 ? gate[c] / total : 1.0f / kN;
      if (share > 0) entropy -= share * logf(share);
      most = fmaxf(most, share);
#pragma unroll
      for (int id = 0; id < kBranches; ++id) {
        v[5 + id] += p.branch_id[c] == id ? share : 0.0f;
        v[5 + kBranches + id] += p.branch_id[c] == id ? gate[c] : 0.0f;
      }
    }
    v[0] += entropy;
    v[1] = fminf(v[1], entropy);
    v[2] += most;
    v[3] = fmaxf(v[3], most);
    const bool one = entropy < kCollapsedEntropy && most > kCollapsedShare;
    v[4] += one || total < kCollapsedSum ? 1.0f : 0.0f;
  }
};

__device__ __forceinline__ float CombineField(int field, float a, float b) {
  return field == 1 ? fminf(a, b) : field == 3 ? fmaxf(a, b) : a + b;
}

// Computes o of the thread block's rows. Their memory is contiguous, in chunks of 8 elements; a
// thread has kBatch chunks in flight at a time.
template <int kN>
__device__ __forceinline__ void Combine(const GateProblem& p,
                                        const float (&gates)[kGateBlockRows][4], int64_t row0,
                                        int rows, bf16* o) {
  constexpr int kBatch = 3;
  const int per_row = p.h * p.dv / 8, total = rows * per_row;
  const int64_t first = row0 * per_row;
  for (int base = threadIdx.x; base < total; base += kBatch * blockDim.x) {
    uint4 in[kBatch][kN];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = min(base + j * static_cast<int>(blockDim.x), total - 1);
#pragma unroll
      for (int c = 0; c < kN; ++c) {
        in[j][c] = __ldg(reinterpret_cast<const uint4*>(p.branch[c]) + first + i);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * static_cast<int>(blockDim.x);
      if (i >= total) break;
      const float(&gate)[4] = gates[i / per_row];
      Float8 sum{};
#pragma unroll
      for (int c = 0; c < kN; ++c) {
        const Float8 x = AsFloats(in[j][c]);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum.v[e] = fmaf(gate[c], x.v[e], sum.v[e]);
      }
      Store8(o + (first + i) * 8, sum);
    }
  }
}

// A thread block processes groups of 16 rows, as many at a time as it has warps: one warp per group
// computes the gates, then all warps together compute the combination.
template <int kDk, int kN>
__global__ void __launch_bounds__(kGateWarps* kWarp)
    GateKernel(Begin begin, GateProblem p, float* gates, bf16* o, float* partial_stats) {
  __shared__ GateParameters<kDk, kN> m;
  __shared__ float row_gates[kGateBlockRows][4];
  begin.WaitForPrevious();
  m.template Load<false>(p);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const GroupRange range = GroupsOf(p);
  const int warps = blockDim.x / kWarp;
  Stats stats;
  for (int64_t base = range.begin; base < range.end; base += warps) {
    const int64_t row0 = base * kGateRows;
    const int rows = RowsFrom(p, range, base, warps);
    if (warp * kGateRows < rows) {
      GateMeans<kDk> x;
      ComputeMeans<kDk>(p, row0 + warp * kGateRows, lane, x);
      if (p.q_mean != nullptr) StoreMeans<kDk>(p, row0 + warp * kGateRows, lane, x);
      GateUnits<kDk> before;
      HiddenUnits<kDk, kN>(m, x, lane, before);
      RowGates<kN> gate;
      EvaluateGates<kDk, kN>(m, p.sigmoid, before, lane, gate);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp * kGateRows + lane / 4 + 8 * i;
        if ((lane & 3) != 0 || row >= rows) continue;
#pragma unroll
        for (int c = 0; c < kN; ++c) {
          row_gates[row][c] = gate[i][c];
          gates[(row0 + row) * kN + c] = gate[i][c];
        }
        if (partial_stats != nullptr) stats.Add<kN>(p, gate[i]);
      }
    }
    __syncthreads();
    Combine<kN>(p, row_gates, row0, rows, o);
    __syncthreads();
  }
  if (partial_stats == nullptr) return;
  // Combine over the lanes by a fixed tree, then over the warps in order.
  float* warp_stats = &row_gates[0][0];
#pragma unroll
  for (int field = 0; field < kStatFields; ++field) {
    float value = stats.v[field];
    for (int offset = 4; offset < kWarp; offset <<= 1) {
      value = CombineField(field, value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    if (lane == 0) warp_stats[warp * kStatFields + field] = value;
  }
  __syncthreads();
  if (threadIdx.x >= kStatFields) return;
  float value = warp_stats[threadIdx.x];
  for (int from = 1; from < warps; ++from) {
    value = CombineField(threadIdx.x, value, warp_stats[from * kStatFields + threadIdx.x]);
  }
  partial_stats[blockIdx.x * kStatFields + threadIdx.x] = value;
}

// One warp per field: each lane combines every 32nd partial result, then the lanes by a fixed tree.
__global__ void GateStatsKernel(Begin begin, const float* partial, float rows, float* stats) {
  begin.WaitForPrevious();
  const int field = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float value = field == 1 ? INFINITY : 0.0f;
#pragma unroll  // all loads under way
  for (int i = lane; i < kGateBlocks; i += kWarp) {
    value = CombineField(field, value, partial[i * kStatFields + field]);
  }
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = CombineField(field, value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  if (lane == 0) stats[field] = field == 1 || field == 3 ? value : value / rows;
}

// dq[row, a, :] += dq_mean[row, :] / h, eight elements per thread.
__global__ void AddMeanGradientKernel(Begin begin, const bf16* mean, bf16* dq, int h, int width,
                                      int64_t chunks) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  const int64_t row = i / width / h;
  const Float8 x = Load8(mean + (row * width + i % width) * 8);
  Float8 y = Load8(dq + i * 8);
#pragma unroll
  for (int e = 0; e < 8; ++e) y.v[e] += x.v[e] / h;
  Store8(dq + i * 8, y);
}

}  // namespace

absl::Status Gate(const Exec& exec, const GateArgs& args) {
  int branches = 0;
  GateProblem p = GateProblemOf(args, &branches);
  p.q = DataOf<bf16>(args.q);
  p.q_stride = args.q_stride;
  if (p.q_stride == 0) p.q_stride = int64_t{1} * args.shape.n_heads * args.shape.d_k;
  p.q_mean = DataOf<float>(args.q_mean);
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, PlanGateScratch(args.shape).bytes, "gate"));
  float* partial = args.gate_stats.wanted() ? static_cast<float*>(workspace) : nullptr;
  // The statistics need all thread blocks; without them those that would have no row stay away.
  const int64_t blocks = CeilDiv64(p.rows, int64_t{kGateRows} * GateWarps(p.rows));
  const auto grid = static_cast<unsigned int>(
      partial != nullptr ? kGateBlocks : std::min<int64_t>(blocks, kGateBlocks));
  NSA_RETURN_IF_ERROR(ForGate(args.shape.d_k, branches, [&](auto dk, auto n) {
    return Launch(exec, "gate", GateKernel<decltype(dk)::value, decltype(n)::value>,
                  {.grid = grid, .block = GateWarps(p.rows) * kWarp}, p, DataOf<float>(args.gates),
                  DataOf<bf16>(args.o), partial);
  }));
  if (partial == nullptr) return absl::OkStatus();
  return Launch(exec, "gate_stats", GateStatsKernel, {.grid = 1, .block = kStatFields * kWarp},
                partial, static_cast<float>(p.rows), DataOf<float>(args.gate_stats));
}

absl::Status AddMeanGradient(const Exec& exec, const AddMeanGradientArgs& args) {
  const int64_t chunks = args.shape.q_size() / 8;
  return Launch(exec, "add_mean_gradient", AddMeanGradientKernel,
                {.grid = GridFor(chunks, 256), .block = 256}, DataOf<bf16>(args.dq_mean),
                DataOf<bf16>(args.dq), args.shape.heads_per_group(), args.shape.d_k / 8, chunks);
}

}  // namespace nsa::cuda
