// Host side of the attention kernels: launches them from argument structs. Included by the .cu
// files of the three branches.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "common/nsa/attention_scratch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/side.h"
#include "kernels/nsa/branch/attention_dkv.cuh"

namespace nsa::cuda {

// Fills the fields that are the same for every branch.
template <class Args>
AttentionProblem ProblemOf(const Args& args, int keys) {
  const NsaShape& s = args.shape;
  AttentionProblem p{};
  p.batch = s.batch, p.seq_len = s.seq_len, p.heads = s.n_heads, p.groups = s.n_kv_groups;
  p.h = s.heads_per_group();
  p.h_inverse = HInverse(p.h);
  p.keys = keys;
  p.l = s.l, p.d = s.d, p.window = std::min(s.window, s.seq_len), p.l_sel = s.l_sel,
  p.n_sel = s.n_sel;
  p.sel_blocks = s.sel_blocks();
  p.dk = s.d_k, p.dv = s.d_v;
  p.scale = args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(s.d_k));
  p.q = DataOf<bf16>(args.q), p.k = DataOf<bf16>(args.k), p.v = DataOf<bf16>(args.v);
  p.doc_start = DataOf<int>(args.doc_start);
  return p;
}

// Calls run(std::integral_constant<int, kD>) with kD = max(dk, dv). NsaShape::Validate() limits kD
// to 16, 32, 64, 128, 192.
template <class Run>
absl::Status ForHeadWidth(const NsaShape& shape, Run run) {
  switch (std::max(shape.d_k, shape.d_v)) {
    case 16:
      return run(std::integral_constant<int, 16>());
    case 32:
      return run(std::integral_constant<int, 32>());
    case 64:
      return run(std::integral_constant<int, 64>());
    case 128:
      return run(std::integral_constant<int, 128>());
    default:
      return run(std::integral_constant<int, 192>());
  }
}

// kLargeTiles<width> of the code that the driver has loaded.
inline absl::StatusOr<bool> LargeTiles(int width) {
  if (width <= 64) return true;
  NSA_ASSIGN_OR_RETURN(const int32_t architecture, KernelArchitecture());
  return architecture >= 90;
}

// The tensors in boxes, where the code that the driver has loaded reads them: q, and d_o if it is
// not null, in boxes of `tokens` tokens.
inline absl::StatusOr<AttentionBoxes> BoxesOf(const AttentionProblem& p, const bf16* d_o,
                                              int tokens) {
  AttentionBoxes boxes{};
  NSA_ASSIGN_OR_RETURN(const int32_t architecture, KernelArchitecture());
  if (architecture < 90 || std::max(p.dk, p.dv) != kPanelColumns) return boxes;
  const auto keys = [&](const bf16* data, int width) {
    return MapOf({data, p.batch, p.keys, p.groups, width, kKeyTile, 1});
  };
  const auto queries = [&](const bf16* data, int width) {
    return MapOf({data, p.batch, p.seq_len, p.heads, width, tokens, p.h});
  };
  if (p.keys > 0) {
    NSA_ASSIGN_OR_RETURN(boxes.k, keys(p.k, p.dk));
    NSA_ASSIGN_OR_RETURN(boxes.v, keys(p.v, p.dv));
  }
  NSA_ASSIGN_OR_RETURN(boxes.q, queries(p.q, p.dk));
  if (d_o != nullptr) {
    NSA_ASSIGN_OR_RETURN(boxes.d_o, queries(d_o, p.dv));
  }
  return boxes;
}

// A number of thread blocks or threads as CUDA takes it.
inline unsigned int Blocks(int count) { return static_cast<unsigned int>(count); }

// How the work of a query-major kernel is divided.
struct QueryGrid {
  int queries;  // tokens per tile
  int tiles;    // per sequence
  int threads;  // 32 per 16 rows; whole warp groups where heads are 64 wide or more
  int blocks;
  int union_bytes;
  int rows_padded() const { return threads / kWarp * 16; }
  LaunchShape Shape(int shared) const {
    return {.grid = Blocks(blocks),
            .block = Blocks(threads),
            .shared = shared,
            .next_may_start = false};
  }
};
// `rows`: most rows of a tile.
template <Branch kBranch>
QueryGrid GridOf(const AttentionProblem& p, int rows) {
  QueryGrid grid{};
  grid.queries = QueriesOf(kBranch, p.sel_blocks, p.n_sel, p.h, rows);
  grid.tiles = CeilDiv(p.seq_len, grid.queries);
  grid.threads = PaddedRows(std::max(p.dk, p.dv), grid.queries * p.h) / 16 * kWarp;
  grid.blocks = grid.tiles * p.batch * p.groups;
  grid.union_bytes = kBranch == kSel ? UnionBytes(p.sel_blocks, p.n_sel, grid.queries) : 0;
  return grid;
}

template <class Args>
AttentionOutputs OutputsOf(const Args& args) {
  return {DataOf<bf16>(args.o), DataOf<float>(args.lse),
          DataOf<unsigned long long>(args.keys_read)};
}

// Zeroes keys_read, to which the kernels add, unless the caller has.
template <class Args>
absl::Status ZeroKeysRead(const Exec& exec, const Args& args, const char* what) {
  if (args.statistics_zeroed || !args.keys_read.wanted()) return absl::OkStatus();
  return ToStatus(cudaMemsetAsync(args.keys_read.data, 0, 8, StreamOf(exec)), what);
}

template <Branch kBranch, class Args>
absl::Status LaunchForward(const Exec& exec, const Args& args, const AttentionProblem& p,
                           const char* what) {
  const QueryGrid grid = GridOf<kBranch>(p, ForwardRows(std::max(p.dk, p.dv)));
  const AttentionOutputs out = OutputsOf(args);
  NSA_RETURN_IF_ERROR(ZeroKeysRead(exec, args, what));
  return ForHeadWidth(args.shape, [&](auto width) -> absl::Status {
    constexpr int kD = decltype(width)::value;
    auto* kernel = AttentionForwardKernel<kBranch, kD>;
    NSA_ASSIGN_OR_RETURN(const bool large_tiles, LargeTiles(kD));
    NSA_ASSIGN_OR_RETURN(const AttentionBoxes boxes, BoxesOf(p, nullptr, grid.queries));
    const int shared = ForwardSharedBytes(kD, large_tiles, grid.rows_padded(), grid.union_bytes);
    return Launch(exec, what, kernel, grid.Shape(shared), p, boxes, out, grid.queries, grid.tiles);
  });
}

template <class Args>
AttentionGradients GradientsOf(const Args& args, const float2* stats) {
  const NsaShape& s = args.shape;
  const auto rows = [&](const Tensor& to, int width, const ConstTensor& angles) {
    const auto stride = static_cast<int>(args.key_stride);
    return KeyRows{DataOf<bf16>(to), DataOf<float2>(angles), width,
                   stride != 0 ? stride : s.n_kv_groups * width};
  };
  AttentionGradients grad{};
  grad.stats = stats;
  grad.d_o = DataOf<bf16>(args.d_o);
  grad.dq = DataOf<bf16>(args.dq);
  grad.dq_stride = args.dq_stride != 0 ? static_cast<int>(args.dq_stride) : s.n_heads * s.d_k;
  grad.dk = rows(args.dk, s.d_k, args.dk_angles);
  grad.dv = rows(args.dv, s.d_v, {});
  grad.add_to_dq = args.add_to_dq;
  grad.dq_angles = DataOf<float2>(args.dq_angles);
  grad.dq_mean = DataOf<bf16>(args.dq_mean);
  grad.mean_share = 1.0f / static_cast<float>(s.heads_per_group());
  return grad;
}

// The row statistics, which every branch's backward begins with: those of the arguments, or else
// computed here and written to `memory`. dk and dv need only these, so the side stream may continue
// from there.
template <class Args>
absl::StatusOr<const float2*> StatsOf(const Exec& exec, const Args& args, const AttentionProblem& p,
                                      float2* memory, const char* what) {
  if (args.stats.wanted()) return DataOf<float2>(args.stats);
  const int64_t rows = int64_t{1} * p.batch * p.seq_len * p.heads;
  NSA_RETURN_IF_ERROR(Launch(
      exec, what, StatsKernel, {.grid = GridFor(rows * p.dv / 8, 256), .block = 256},
      DataOf<bf16>(args.o), DataOf<bf16>(args.d_o), DataOf<float>(args.lse), memory, rows, p.dv));
  return memory;
}

// The grid of dq. Where there is less shared memory, one warp group fewer has room beside a large
// union of blocks.
template <Branch kBranch, int kD>
QueryGrid DqGrid(const AttentionProblem& p, bool large_tiles) {
  constexpr int kRows = DqRows(kD);
  const QueryGrid grid = GridOf<kBranch>(p, kRows);
  const int shared = DqSharedBytes(kD, StagesOf(false), grid.rows_padded(), grid.union_bytes);
  if (large_tiles || shared <= kSharedOfA100) return grid;
  return GridOf<kBranch>(p, kRows - kGroupRows);
}

// dq with keys of 192.
template <Branch kBranch>
absl::Status LaunchWideDq(const Exec& exec, const AttentionProblem& p,
                          const AttentionGradients& grad, const char* what) {
  constexpr int kD = 192;
  NSA_ASSIGN_OR_RETURN(const bool large_tiles, LargeTiles(kD));
  const QueryGrid grid = DqGrid<kBranch, kD>(p, large_tiles);
  const int shared = DqSharedBytes(kD, StagesOf(large_tiles), grid.rows_padded(), grid.union_bytes);
  return Launch(exec, what, AttentionDqKernel<kBranch, kD, kStagesOfCode>, grid.Shape(shared), p,
                AttentionBoxes{}, grad, grid.queries, grid.tiles);
}

template <Branch kBranch, class Args>
absl::Status LaunchDq(const Exec& exec, const Args& args, const AttentionProblem& p,
                      const AttentionGradients& grad, const char* what) {
  return ForHeadWidth(args.shape, [&](auto width) -> absl::Status {
    constexpr int kD = decltype(width)::value;
    if constexpr (kD > 128) {
      return LaunchWideDq<kBranch>(exec, p, grad, what);
    } else {
      NSA_ASSIGN_OR_RETURN(const bool large_tiles, LargeTiles(kD));
      const QueryGrid grid = DqGrid<kBranch, kD>(p, large_tiles);
      auto* kernel = AttentionDqKernel<kBranch, kD, 3>;
      int stages = 3;
      if constexpr (kD > 64) {
        // With a single warp group, two thread blocks of two stages each fit on a multiprocessor.
        stages = StagesOf(large_tiles && grid.threads > 128);
        if (stages == 2) kernel = AttentionDqKernel<kBranch, kD, 2>;
      }
      const int shared = DqSharedBytes(kD, stages, grid.rows_padded(), grid.union_bytes);
      NSA_ASSIGN_OR_RETURN(const AttentionBoxes boxes, BoxesOf(p, grad.d_o, grid.queries));
      return Launch(exec, what, kernel, grid.Shape(shared), p, boxes, grad, grid.queries,
                    grid.tiles);
    }
  });
}

// dk and dv of window and compressed, by thread blocks of kGroups warp groups.
template <Branch kBranch, int kD, int kGroups>
absl::Status LaunchDkv(const Exec& exec, const AttentionProblem& p, const AttentionGradients& grad,
                       TokenSegments segments, bool large_tiles, float* sums, const char* what) {
  const int tiles = CeilDiv(p.keys, kGroups * kKeyTile) * p.batch * p.groups;
  auto* kernel = AttentionDkvKernel<kBranch, kD, kGroups>;
  NSA_ASSIGN_OR_RETURN(const AttentionBoxes boxes, BoxesOf(p, grad.d_o, kGroupRows / p.h));
  const int shared = DkvSharedBytes(kD, large_tiles, kGroups, 0);
  NSA_RETURN_IF_ERROR(Launch(exec, what, kernel,
                             {.grid = Blocks(tiles * segments.count),
                              .block = kGroups * kDkvThreads,
                              .shared = shared,
                              .next_may_start = false},
                             p, boxes, grad, segments, sums));
  if (segments.count == 1) return absl::OkStatus();
  return Launch(exec, what, AddSegmentsKernel<kD, kGroups>,
                {.grid = Blocks(tiles * kAddSlices), .block = 256}, p, grad, segments.count, sums);
}

// Backward of window and compressed, where each query sees one contiguous range of keys. dk and dv
// run on the side stream.
template <Branch kBranch, class Args>
absl::Status LaunchBackward(const Exec& exec, const Args& args, const AttentionProblem& p,
                            const BranchScratch& scratch, TokenSegments segments,
                            const char* what) {
  NSA_ASSIGN_OR_RETURN(void* const workspace, WorkspaceOf(exec, scratch.bytes, what));
  auto* memory = static_cast<uint8_t*>(workspace);
  auto* sums = reinterpret_cast<float*>(memory + scratch.sums);
  NSA_ASSIGN_OR_RETURN(
      const float2* const stats,
      StatsOf(exec, args, p, reinterpret_cast<float2*>(memory + scratch.stats), what));
  const AttentionGradients grad = GradientsOf(args, stats);
  if (!args.stats.wanted()) NSA_RETURN_IF_ERROR(Fork(exec));
  NSA_RETURN_IF_ERROR(LaunchDq<kBranch>(exec, args, p, grad, what));
  if (p.keys == 0) return absl::OkStatus();
  const Exec side = OnSide(exec);
  return ForHeadWidth(args.shape, [&](auto width) -> absl::Status {
    constexpr int kD = decltype(width)::value;
    NSA_ASSIGN_OR_RETURN(const bool large_tiles, LargeTiles(kD));
    if constexpr (DkvGroups(kBranch, kD, true) == 2) {
      if (large_tiles) {
        return LaunchDkv<kBranch, kD, 2>(side, p, grad, segments, large_tiles, sums, what);
      }
    }
    return LaunchDkv<kBranch, kD, 1>(side, p, grad, segments, large_tiles, sums, what);
  });
}

}  // namespace nsa::cuda
