#include "kernels/nsa/branch/selected_attention.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/nsa/branch/attend.h"

namespace nsa {
namespace {

// The block ids of one (b, t, g).
const int32_t* BlocksOf(const ConstTensor& blocks, const NsaShape& shape, int64_t b, int64_t t,
                        int64_t g) {
  return static_cast<const int32_t*>(blocks.data) +
         ((b * shape.seq_len + t) * shape.n_kv_groups + g) * shape.n_sel;
}

absl::Status CheckIds(const NsaShape& shape, const ConstTensor& blocks) {
  const int64_t rows = blocks.size / shape.n_sel;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* ids = static_cast<const int32_t*>(blocks.data) + row * shape.n_sel;
    const int64_t t = row / shape.n_kv_groups % shape.seq_len;
    int32_t last = -1;
    for (int32_t i = 0; i < shape.n_sel; ++i) {
      if (ids[i] == -1) continue;
      if (ids[i] <= last || ids[i] > t / shape.l_sel) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "blocks[t=%d,slot=%d]: %d (ascending, at most t/l' = %d, or -1); choose blocks of the "
            "past",
            t, i, ids[i], t / shape.l_sel));
      }
      last = ids[i];
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBlocks(const Exec& exec, const NsaShape& shape, const ConstTensor& blocks) {
  NSA_RETURN_IF_ERROR(CheckTensor("blocks", blocks, shape.blocks_size(), DType::kI32, "B·S·G·n"));
  if (exec.backend != Backend::kCpu) return absl::OkStatus();
  return CheckIds(shape, blocks);
}

template <class Args>
auto SelectedRanges(const Args& args) {
  return [&args](int32_t b, int32_t g, int32_t t, std::vector<KeyRange>* ranges) {
    const int32_t* ids = BlocksOf(args.blocks, args.shape, b, t, g);
    const int32_t first = DocStart(args.doc_start, args.shape, b, t);
    const KeyRange seen = BranchRule<kSel>::Keys(args.shape, t, first);
    for (int32_t i = 0; i < args.shape.n_sel; ++i) {
      if (ids[i] < 0) continue;
      PushRange(Intersection(seen, SelectionBlock(args.shape, ids[i])), ranges);
    }
  };
}

}  // namespace

SelectionStats Combine(const SelectionStats& a, const SelectionStats& b) {
  SelectionStats sum{.keys_sum = a.keys_sum + b.keys_sum,
                     .keys_max = std::max(a.keys_max, b.keys_max),
                     .rows = a.rows + b.rows};
  sum.at_max =
      (a.keys_max == sum.keys_max ? a.at_max : 0) + (b.keys_max == sum.keys_max ? b.at_max : 0);
  return sum;
}

absl::Status SelectedAttention(const Exec& exec, const BranchArgs& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(CheckBranch(exec, "selected_attention", shape.seq_len, args));
  NSA_RETURN_IF_ERROR(CheckBlocks(exec, shape, args.blocks));
  NSA_RETURN_IF_ERROR(CheckOptional("selection_stats", args.selection_stats, kSelectionStats,
                                    DType::kI64, "kSelectionStats"));
  exec.Enter("selected_attention");
  if (exec.backend == Backend::kCuda) return cuda::SelectedAttention(exec, args);
  const KeyCounts counts = Attend(args, shape.seq_len, SelectedRanges(args));
  StoreKeysRead(args.keys_read, counts.sum);
  if (args.selection_stats.wanted()) {
    auto* stats = static_cast<int64_t*>(args.selection_stats.data);
    stats[0] = counts.sum;
    stats[1] = counts.max;
    stats[2] = counts.rows;
    stats[3] = counts.at_max;
  }
  return absl::OkStatus();
}

absl::Status SelectedAttentionBackward(const Exec& exec, const BranchBackwardArgs& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(CheckBranch(exec, "selected_attention_backward", shape.seq_len, args));
  NSA_RETURN_IF_ERROR(CheckBlocks(exec, shape, args.blocks));
  exec.Enter("selected_attention_backward");
  if (exec.backend == Backend::kCuda) return cuda::SelectedAttentionBackward(exec, args);
  AttendBackward(args, shape.seq_len, SelectedRanges(args));
  return absl::OkStatus();
}

}  // namespace nsa
