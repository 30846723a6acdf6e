// Host side of the gate's kernels, and how rows are divided among thread blocks.
#pragma once

#include <algorithm>
#include <type_traits>

#include "common/nsa/attention_scratch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nsa/gate/gate.h"
#include "kernels/nsa/gate/gate_mlp.cuh"

namespace nsa::cuda {

constexpr int kGateBlocks = GateScratch::kBlocks;

// Warps of a thread block in forward: where it has few groups of rows, half as many leave room for
// another on its multiprocessor. (In backward that is slower.)
inline unsigned int GateWarps(int64_t rows) {
  constexpr int kFew = kGateWarps / 2;
  return CeilDiv64(rows, kGateRows) <= int64_t{kGateBlocks} * kFew ? kFew : kGateWarps;
}

struct GroupRange {
  int64_t begin, end;  // groups of kGateRows rows
};
__device__ __forceinline__ GroupRange GroupsOf(const GateProblem& p) {
  const int64_t groups = CeilDiv64(p.rows, kGateRows);
  return {groups * blockIdx.x / gridDim.x, groups * (blockIdx.x + 1) / gridDim.x};
}

// Number of rows that a thread block processes together from group `base` on, up to `most` groups.
__device__ __forceinline__ int RowsFrom(const GateProblem& p, const GroupRange& range, int64_t base,
                                        int most) {
  const int64_t groups = min(int64_t{most}, range.end - base);
  return static_cast<int>(min(groups * kGateRows, p.rows - base * kGateRows));
}

// All but q and its means.
template <class Args>
GateProblem GateProblemOf(const Args& args, int* branches) {
  const NsaShape& s = args.shape;
  GateProblem p{};
  p.rows = int64_t{1} * s.batch * s.seq_len * s.n_kv_groups;
  p.groups = s.n_kv_groups, p.h = s.heads_per_group(), p.dv = s.d_v;
  p.sigmoid = args.kind == GateKind::kSigmoid;
  p.fc1_w = DataOf<bf16>(args.params.fc1_w), p.fc1_b = DataOf<bf16>(args.params.fc1_b);
  p.fc2_w = DataOf<bf16>(args.params.fc2_w), p.fc2_b = DataOf<bf16>(args.params.fc2_b);
  *branches = 0;
  for (int c = 0; c < kBranches; ++c) {
    if (!args.o_branch[c].wanted()) continue;
    p.branch_id[*branches] = c;
    p.branch[(*branches)++] = DataOf<bf16>(args.o_branch[c]);
  }
  return p;
}

// Calls run(width, n) with the number of branches present, 2 to kBranches, as integral constant.
template <int kN = kBranches, class Width, class Run>
absl::Status WithBranchCount(int branches, Width width, Run run) {
  if constexpr (kN > 2) {
    if (branches < kN) return WithBranchCount<kN - 1>(branches, width, run);
  }
  return run(width, std::integral_constant<int, kN>());
}

// Calls run(dk, n) with two integral constants: the key width and the number of branches present.
template <class Run>
absl::Status ForGate(int dk, int branches, Run run) {
  const auto with_n = [&](auto width) { return WithBranchCount(branches, width, run); };
  switch (dk) {
    case 16:
      return with_n(std::integral_constant<int, 16>());
    case 32:
      return with_n(std::integral_constant<int, 32>());
    case 64:
      return with_n(std::integral_constant<int, 64>());
    case 128:
      return with_n(std::integral_constant<int, 128>());
    default:
      return with_n(std::integral_constant<int, 192>());
  }
}

}  // namespace nsa::cuda
