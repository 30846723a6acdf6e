#include "worker/train/decode/attend_rows.h"

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "common/nsa/visibility.h"
#include "kernels/nsa/branch/attend.h"
#include "kernels/nsa/decode/attend_rows.h"
#include "worker/train/decode/choose_blocks.h"

namespace nsa::train {
namespace {

int64_t RowsOf(const AttendRowsArgs& args) { return static_cast<int64_t>(args.doc_start.size()); }

int32_t PositionOf(const AttendRowsArgs& args, int64_t row) {
  return static_cast<int32_t>(args.first + row);
}

// The shape of the new rows alone.
NsaShape ShapeOf(const AttendRowsArgs& args) {
  NsaShape shape = args.config.shape;
  shape.batch = 1;
  shape.seq_len = static_cast<int32_t>(RowsOf(args));
  return shape;
}

// The branch's attention over `k` and `v`, whose rows `ranges` names.
int64_t AttendBranch(const AttendRowsArgs& args, Branch branch, const ConstTensor& k,
                     const ConstTensor& v, int64_t keys, KeyRangesFn ranges) {
  BranchArgs out;
  out.shape = ShapeOf(args);
  out.q = args.work.q_rotated;
  out.k = k;
  out.v = v;
  out.o = args.config.has_gate() ? args.work.o_c[branch] : args.work.o;
  out.lse = args.work.lse[branch];
  return Attend(out, static_cast<int32_t>(keys), ranges).sum;
}

int64_t AttendCompressed(const AttendRowsArgs& args) {
  const LayerCache& cache = args.cache;
  return AttendBranch(args, kCmp, cache.k_cmp.from(0), cache.v_cmp.from(0), cache.k_cmp.end(),
                      [&](int32_t, int32_t, int32_t row, std::vector<KeyRange>* ranges) {
                        PushRange(BranchRule<kCmp>::Keys(args.config.shape, PositionOf(args, row),
                                                         args.doc_start[row]),
                                  ranges);
                      });
}

int64_t AttendWindow(const AttendRowsArgs& args) {
  const NsaShape& shape = args.config.shape;
  const int64_t first = std::max<int64_t>(0, args.first + 1 - shape.window);
  const RowCache& k = args.cache.k[kWin];
  return AttendBranch(args, kWin, k.from(first), args.cache.v[kWin].from(first), k.end() - first,
                      [&](int32_t, int32_t, int32_t row, std::vector<KeyRange>* ranges) {
                        const KeyRange keys = BranchRule<kWin>::Keys(shape, PositionOf(args, row),
                                                                     args.doc_start[row]);
                        const auto from = static_cast<int32_t>(first);
                        PushRange({keys.begin - from, keys.end - from}, ranges);
                      });
}

void ChooseAll(const AttendRowsArgs& args) {
  const NsaShape& shape = args.config.shape;
  const int64_t groups = shape.n_kv_groups, h = shape.heads_per_group(), n = shape.n_sel;
  const auto* q = args.work.q_rotated.as<float>().data();
  const auto* lse = args.config.has(kCmp) ? args.work.lse[kCmp].as<float>().data() : nullptr;
  auto* blocks = args.work.blocks.as<int32_t>().data();
  const auto* k = args.cache.k_cmp.from(0).as<float>().data();
  const int64_t pairs = RowsOf(args) * groups;
#pragma omp parallel if (RowsOf(args) > 1)
  {
    BlockChooser chooser(shape);
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t row = pair / groups, g = pair % groups;
      chooser.Choose({.t = PositionOf(args, row),
                      .first = args.doc_start[row],
                      .q = q + pair * h * shape.d_k,
                      .k = k + g * shape.d_k,
                      .k_step = groups * shape.d_k,
                      .lse = lse == nullptr ? nullptr : lse + pair * h},
                     {blocks + pair * n, static_cast<size_t>(n)});
    }
  }
}

// The tokens that a row's group selected and may see.
void SelectedRanges(const AttendRowsArgs& args, int64_t row, int64_t g,
                    std::vector<KeyRange>* ranges) {
  const NsaShape& shape = args.config.shape;
  const int32_t* ids =
      args.work.blocks.as<int32_t>().data() + (row * shape.n_kv_groups + g) * shape.n_sel;
  const KeyRange seen = BranchRule<kSel>::Keys(shape, PositionOf(args, row), args.doc_start[row]);
  for (int32_t i = 0; i < shape.n_sel; ++i) {
    if (ids[i] < 0) continue;
    PushRange(Intersection(seen, SelectionBlock(shape, ids[i])), ranges);
  }
}

// Copies the columns of group g of the rows in `ranges` to consecutive rows; returns their number.
int32_t Gather(const std::vector<KeyRange>& ranges, const float* from, int64_t g, int64_t groups,
               int64_t width, float* to) {
  int32_t count = 0;
  for (const KeyRange& range : ranges) {
    for (int32_t j = range.begin; j < range.end; ++j, ++count) {
      std::copy_n(from + (j * groups + g) * width, width, to + (count * groups + g) * width);
    }
  }
  return count;
}

// One token: only the rows that it selected are touched, however long the sequence is.
int64_t AttendSelectedOfOne(const AttendRowsArgs& args) {
  const NsaShape& shape = args.config.shape;
  const int64_t groups = shape.n_kv_groups;
  std::vector<int32_t> counts(groups);
  std::vector<KeyRange> selected;
  for (int64_t g = 0; g < groups; ++g) {
    selected.clear();
    SelectedRanges(args, 0, g, &selected);
    counts[g] = Gather(selected, args.cache.k[kSel].from(0).as<float>().data(), g, groups,
                       shape.d_k, args.work.near_k.as<float>().data());
    Gather(selected, args.cache.v[kSel].from(0).as<float>().data(), g, groups, shape.d_v,
           args.work.near_v.as<float>().data());
  }
  return AttendBranch(args, kSel, args.work.near_k, args.work.near_v,
                      *std::max_element(counts.begin(), counts.end()),
                      [&](int32_t, int32_t g, int32_t, std::vector<KeyRange>* ranges) {
                        PushRange({0, counts[g]}, ranges);
                      });
}

int64_t AttendSelected(const AttendRowsArgs& args) {
  ChooseAll(args);
  if (RowsOf(args) == 1) return AttendSelectedOfOne(args);
  const LayerCache& cache = args.cache;
  return AttendBranch(args, kSel, cache.k[kSel].from(0), cache.v[kSel].from(0), cache.k[kSel].end(),
                      [&](int32_t, int32_t g, int32_t row, std::vector<KeyRange>* ranges) {
                        SelectedRanges(args, row, g, ranges);
                      });
}

// All branches on a GPU, and the gate.
absl::Status AttendOnGpu(const Exec& exec, const AttendRowsArgs& args) {
  const LayerCache& cache = args.cache;
  AttendCachedArgs attend{.config = args.config,
                          .tokens = static_cast<int32_t>(args.first + RowsOf(args)),
                          .at = args.at,
                          .doc_start = args.work.doc_start,
                          .q = args.work.q_rotated,
                          .q_unrotated = args.work.q,
                          .gate = args.params.gate,
                          .scratch = args.work.attention,
                          .blocks = args.work.blocks,
                          .o = args.work.o,
                          .keys_read = args.keys_read};
  attend.config.shape = ShapeOf(args);
  attend.k[kCmp] = cache.k_cmp.from(0);
  attend.v[kCmp] = cache.v_cmp.from(0);
  for (const Branch branch : {kSel, kWin}) {
    attend.k[branch] = cache.k[branch].from(cache.k[branch].begin());
    attend.v[branch] = cache.v[branch].from(cache.v[branch].begin());
  }
  return cuda::AttendCached(exec, attend);
}

absl::Status Combine(const Exec& exec, const AttendRowsArgs& args) {
  const NsaShape shape = ShapeOf(args);
  const DecodeWork& work = args.work;
  std::array<ConstTensor, kBranches> branches;
  for (int c = 0; c < kBranches; ++c) {
    if (args.config.branches[c]) branches[c] = Prefix(work.o_c[c], shape.o_size());
  }
  const int64_t gates = int64_t{shape.seq_len} * shape.n_kv_groups * args.config.n_branches();
  return Gate(exec, {.shape = shape,
                     .kind = args.config.gate,
                     .q = Prefix(work.q, shape.q_size()),
                     .params = args.params.gate,
                     .o_branch = branches,
                     .gates = Prefix(work.gates, gates),
                     .o = Prefix(work.o, shape.o_size())});
}

}  // namespace

absl::Status AttendRows(const Exec& exec, const AttendRowsArgs& args) {
  exec.Enter("decode_attention");
  const NsaLayerConfig& config = args.config;
  if (exec.backend == Backend::kCuda) return AttendOnGpu(exec, args);
  const std::span<int64_t> keys_read = args.keys_read.as<int64_t>();
  if (config.has(kCmp)) keys_read[kCmp] += AttendCompressed(args);
  if (config.has(kSel)) keys_read[kSel] += AttendSelected(args);
  if (config.has(kWin)) keys_read[kWin] += AttendWindow(args);
  return config.has_gate() ? Combine(exec, args) : absl::OkStatus();
}

}  // namespace nsa::train
