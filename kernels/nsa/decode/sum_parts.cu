// The output of new rows from the parts of their branches, and the gate (kernels/nsa/gate/gate.h)
// that weighs the branches. A thread block has one row and head: 256 threads add up the parts of
// each branch, and as many more compute the gate of the head's group meanwhile. The heads of a
// group all compute the same gate, which costs less than a kernel of its own.
#include <cmath>

#include "kernels/nsa/decode/problem.cuh"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;  // of a branch, and of the gate
constexpr int kBatch = 4;      // parts in flight in a thread

// A column of Σ 2^(score − max) · v, and Σ 2^(score − max).
struct Partial {
  float max, sum, o;

  __device__ __forceinline__ static Partial OfNoKeys() { return {-INFINITY, 0, 0}; }

  // Adds get(i) for i = begin, begin + step, … below end, in this order.
  template <class Get>
  __device__ __forceinline__ void AddAll(int begin, int end, int step, Get get) {
    for (int base = begin; base < end; base += kBatch * step) {
      Partial next[kBatch];
      float most = max;
#pragma unroll  // all loads under way
      for (int j = 0; j < kBatch; ++j) {
        const int i = base + j * step;
        next[j] = get(min(i, end - 1));
        if (i >= end) next[j] = OfNoKeys();
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) most = fmaxf(most, next[j].max);
      const float from = most == -INFINITY ? 0.0f : most, keep = Exp2(max - from);
      sum *= keep, o *= keep, max = most;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float weight = Exp2(next[j].max - from);
        sum = fmaf(next[j].sum, weight, sum);
        o = fmaf(next[j].o, weight, o);
      }
    }
  }
};

// kMostDk: keys are at most so wide, 128 or 192.
template <int kMostDk>
struct SumShared {
  Partial partial[kBranches][kThreads];
  float o[kBranches][kMostValueWidth];  // of each branch
  float x[kMostDk];                     // what the gate reads
  float hidden[GateHidden(kMostDk)];
  float logits[kBranches];
};

// A column of the parts of a branch: every n-th from `slice` on, n = threads / dv.
__device__ __forceinline__ Partial SumOfSlice(const DecodeProblem& p, int branch, int row, int head,
                                              int slice, int column) {
  const int first = p.first_part[branch], end = first + p.parts[branch];
  Partial total = Partial::OfNoKeys();
  total.AddAll(first + slice, end, kThreads / p.dv, [&](int part) {
    const int64_t at = p.StatsAt(part, row, head);
    const float2 stats = p.stats[at];
    const float o = p.part_o[at * p.dv + column];
    return Partial{stats.x, stats.y, stats.y == 0 ? 0.0f : o};  // without keys o is not written
  });
  return total;
}

// The parameters of a hidden unit that a lane has.
template <int kMostDk>
struct HiddenUnit {
  static constexpr int kLanes = 4;  // of a unit
  static constexpr int kAtOnce = kThreads / kLanes;
  static constexpr int kRounds = CeilDiv(kMostDk / 2, kAtOnce);
  static constexpr int kChunks = kMostDk / 4 / kLanes;

  uint2 w1[kChunks];
  float b1;

  __device__ __forceinline__ void Load(const DecodeProblem& p, const DecodeGate& gate, int unit,
                                       int lane) {
    const int hidden = p.dk / 2;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const int c = (lane + j * kLanes) * 4;
      w1[j] = unit < hidden && c < p.dk
                  ? *reinterpret_cast<const uint2*>(gate.fc1_w + unit * p.dk + c)
                  : uint2{};
    }
    b1 = unit < hidden ? __bfloat162float(gate.fc1_b[unit]) : 0.0f;
  }
};

// The gate's MLP on 256 threads, thread i. What it reads is loaded before its first barrier, but
// for hidden units after the 64th.
template <int kMostDk>
struct GateMlp {
  using Unit = HiddenUnit<kMostDk>;
  static constexpr int kLanes = Unit::kLanes;
  static constexpr int kOfLane = kMostDk / 2 / kWarp;  // hidden units in a lane of Logits()

  Unit first;
  float w2[kOfLane], b2;

  __device__ __forceinline__ void Load(const DecodeProblem& p, const DecodeGate& gate, int row,
                                       int head, int i, SumShared<kMostDk>& shared) {
    const int hidden = p.dk / 2, branch = i / kWarp;
    first.Load(p, gate, i / kLanes, i % kLanes);
    b2 = branch < gate.branches ? __bfloat162float(gate.fc2_b[branch]) : 0.0f;
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      const int c = i % kWarp + j * kWarp;
      w2[j] = branch < gate.branches && c < hidden
                  ? __bfloat162float(gate.fc2_w[branch * hidden + c])
                  : 0.0f;
    }
    if (i >= p.dk) return;
    const bf16* const q = gate.q + (int64_t{row} * p.heads + head / p.h * p.h) * p.dk + i;
    float of_head[kMostHeads], sum = 0;
#pragma unroll  // all loads under way
    for (int a = 0; a < kMostHeads; ++a) {
      of_head[a] = a < p.h ? __bfloat162float(q[a * p.dk]) : 0.0f;
    }
#pragma unroll
    for (int a = 0; a < kMostHeads; ++a) sum += of_head[a];
    shared.x[i] = sum / static_cast<float>(p.h);
  }

  __device__ __forceinline__ void Hidden(const DecodeProblem& p, const DecodeGate& gate, int i,
                                         SumShared<kMostDk>& shared) const {
    Unit own = first;
#pragma unroll
    for (int round = 0; round < Unit::kRounds; ++round) {
      const int unit = i / kLanes + round * Unit::kAtOnce;
      if (unit >= p.dk / 2) return;  // whole warps
      if (round > 0) own.Load(p, gate, unit, i % kLanes);
      float z = 0;
#pragma unroll
      for (int j = 0; j < Unit::kChunks; ++j) {
        const int c = (i % kLanes + j * kLanes) * 4;
        if (c >= p.dk) break;
        const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&own.w1[j]);
        const float2 left = __bfloat1622float2(pairs[0]), right = __bfloat1622float2(pairs[1]);
        z = fmaf(left.x, shared.x[c], z), z = fmaf(left.y, shared.x[c + 1], z);
        z = fmaf(right.x, shared.x[c + 2], z), z = fmaf(right.y, shared.x[c + 3], z);
      }
      z = QuadSum(z) + own.b1;
      if (i % kLanes == 0) shared.hidden[unit] = z / (1.0f + __expf(-z));
    }
  }

  // A warp for each branch.
  __device__ __forceinline__ void Logits(const DecodeProblem& p, const DecodeGate& gate, int i,
                                         SumShared<kMostDk>& shared) const {
    if (i / kWarp >= gate.branches) return;
    float z = 0;
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      const int c = i % kWarp + j * kWarp;
      if (c < p.dk / 2) z = fmaf(w2[j], shared.hidden[c], z);
    }
    z = WarpSum(z);
    if (i % kWarp == 0) shared.logits[i / kWarp] = z + b2;
  }
};

// Σ gate · o over the branches, of one column.
template <int kMostDk>
__device__ __forceinline__ float Combined(const DecodeGate& gate, int column,
                                          const SumShared<kMostDk>& shared) {
  if (gate.branches == 1) return shared.o[0][column];
  float top = -INFINITY, sum = 0, o = 0;
  for (int c = 0; c < gate.branches; ++c) top = fmaxf(top, shared.logits[c]);
  for (int c = 0; c < gate.branches; ++c) {
    const float z = shared.logits[c];
    const float weight = gate.sigmoid ? 1.0f / (1.0f + expf(-z)) : expf(z - top);
    sum += weight;
    o = fmaf(weight, shared.o[c][column], o);
  }
  return gate.sigmoid ? o : o / sum;
}

template <int kMostDk>
__global__ void __launch_bounds__(kThreads*(kBranches + 1))
    SumKernel(Begin begin, const __grid_constant__ DecodeProblem p,
              const __grid_constant__ DecodeGate gate) {
  __shared__ SumShared<kMostDk> shared;
  begin.WaitForPrevious();
  const int head = blockIdx.x, row = blockIdx.y;
  const int place = threadIdx.x / kThreads,
            i = threadIdx.x % kThreads;  // behind the branches: gate
  const bool is_gate = place == gate.branches;
  const int slices = kThreads / p.dv, slice = i / p.dv, column = i % p.dv;
  GateMlp<kMostDk> mlp;
  Partial total;
  if (is_gate) {
    mlp.Load(p, gate, row, head, i, shared);
  } else {
    total = SumOfSlice(p, gate.branch[place], row, head, slice, column);
    shared.partial[place][i] = total;
  }
  __syncthreads();
  if (is_gate) {
    mlp.Hidden(p, gate, i, shared);
  } else if (slice == 0) {
    total.AddAll(1, slices, 1,
                 [&](int other) { return shared.partial[place][other * p.dv + column]; });
    shared.o[place][column] = total.sum > 0 ? total.o / total.sum : 0.0f;
  }
  __syncthreads();
  if (is_gate) mlp.Logits(p, gate, i, shared);
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= p.dv) return;
  gate.o[(int64_t{row} * p.heads + head) * p.dv + threadIdx.x] =
      __float2bfloat16(Combined(gate, threadIdx.x, shared));
}

}  // namespace

absl::Status SumParts(const Exec& exec, const DecodeProblem& p, const DecodeGate& gate) {
  const int places = gate.branches == 1 ? 1 : gate.branches + 1;
  return Launch(
      exec, "sum_parts", p.dk > 128 ? SumKernel<kMostKeyWidth> : SumKernel<128>,
      {.grid = dim3(static_cast<unsigned int>(p.heads), static_cast<unsigned int>(p.rows)),
       .block = static_cast<unsigned int>(places * kThreads)},
      p, gate);
}

}  // namespace nsa::cuda
