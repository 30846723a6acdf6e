// What the selection chose: the block lists of sampled queries, and their statistics.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/nsa/audit/audit.h"
#include "kernels/nsa/branch/attend.h"

namespace nsa {
namespace {

absl::Status Check(const Exec& exec, const AuditChoicesArgs& args) {
  NSA_RETURN_IF_ERROR(args.shape.Validate());
  NSA_RETURN_IF_ERROR(CheckAtLeast("queries", args.queries, 1));
  if (args.queries > kAuditedQueries) {
    return absl::InvalidArgumentError(
        absl::StrFormat("queries: %d (at most %d); sample fewer", args.queries, kAuditedQueries));
  }
  NSA_RETURN_IF_ERROR(
      CheckTensor("blocks", args.blocks, args.shape.blocks_size(), DType::kI32, "B·S·G·n"));
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, args.shape, args.doc_start));
  return CheckTensor("chosen", args.chosen, int64_t{1} * args.queries * ChoiceWidth(args.shape),
                     DType::kI32, "N·(1 + 2·G·n)");
}

// One row of `chosen`.
void Copy(const AuditChoicesArgs& args, int32_t i) {
  const NsaShape& s = args.shape;
  const int32_t query = AuditedQuery(args.step, i, s.batch * s.seq_len);
  const int32_t t = query % s.seq_len, lists = s.n_kv_groups * s.n_sel;
  const int32_t first = DocStart(args.doc_start, s, query / s.seq_len, t);
  const auto* const blocks = static_cast<const int32_t*>(args.blocks.data) + int64_t{query} * lists;
  auto* const row = static_cast<int32_t*>(args.chosen.data) + int64_t{i} * ChoiceWidth(s);
  row[0] = first;
  std::copy_n(blocks, lists, row + 1);
  if (t > first) {
    std::copy_n(blocks - lists, lists, row + 1 + lists);
  } else {
    std::fill_n(row + 1 + lists, lists, -1);
  }
}

int32_t Length(KeyRange range) { return std::max(0, range.end - range.begin); }

// The lists of one (query, group) pair.
struct Pair {
  int32_t t, first;
  std::span<const int32_t> blocks, before;
};

// Adds up the statistics over the pairs.
class Tally {
 public:
  Tally(const NsaShape& shape, bool has_window)
      : shape_(shape), has_window_(has_window), counts_(shape.sel_blocks()) {}

  void Add(const Pair& pair) {
    ++stats_.rows;
    if (has_window_) AddOverlap(pair);
    const KeyRange candidates = CandidateBlocks(shape_, pair.t, pair.first);
    if (Length(candidates) <= shape_.n_sel) return;
    int free = 0, agreed = 0;
    for (const int32_t block : pair.blocks) {
      const bool forced = block == candidates.begin || block >= candidates.end - 2;
      if (block < 0 || forced) continue;
      ++free;
      ++counts_[block];
      agreed += std::count(pair.before.begin(), pair.before.end(), block) > 0 ? 1 : 0;
    }
    if (free == 0) return;
    stats_.free_choices += free;
    ++choosing_;
    stats_.neighbour_agreement += static_cast<double>(agreed) / free;
  }

  ChoiceStats Result() {
    if (stats_.rows > 0) stats_.window_overlap /= stats_.rows;
    if (choosing_ > 0) stats_.neighbour_agreement /= choosing_;
    stats_.entropy = Entropy();
    return stats_;
  }

 private:
  void AddOverlap(const Pair& pair) {
    const KeyRange seen = BranchRule<kSel>::Keys(shape_, pair.t, pair.first);
    const KeyRange window = BranchRule<kWin>::Keys(shape_, pair.t, pair.first);
    int32_t tokens = 0, inside = 0;
    for (const int32_t block : pair.blocks) {
      if (block < 0) continue;
      const KeyRange range = Intersection(seen, SelectionBlock(shape_, block));
      tokens += Length(range);
      inside += Length(Intersection(range, window));
    }
    stats_.window_overlap += static_cast<double>(inside) / std::max(1, tokens);
  }

  double Entropy() const {
    const auto choices = static_cast<double>(stats_.free_choices);
    const double largest = std::log(std::min(choices, static_cast<double>(counts_.size())));
    if (!(largest > 0)) return 0;
    double entropy = 0;
    for (const int64_t count : counts_) {
      if (count == 0) continue;
      const double p = static_cast<double>(count) / choices;
      entropy -= p * std::log(p);
    }
    return entropy / largest;
  }

  const NsaShape& shape_;
  const bool has_window_;
  std::vector<int64_t> counts_;  // free choices of each block
  int choosing_ = 0;             // pairs with a free choice
  ChoiceStats stats_;
};

}  // namespace

absl::Status AuditChoices(const Exec& exec, const AuditChoicesArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("audit");
  if (exec.backend == Backend::kCuda) return cuda::AuditChoices(exec, args);
  for (int32_t i = 0; i < args.queries; ++i) Copy(args, i);
  return absl::OkStatus();
}

ChoiceStats SummariseChoices(const NsaShape& shape, int64_t step, bool has_window,
                             std::span<const int32_t> chosen) {
  Tally tally(shape, has_window);
  const auto width = static_cast<size_t>(ChoiceWidth(shape));
  const auto n = static_cast<size_t>(shape.n_sel), groups = static_cast<size_t>(shape.n_kv_groups);
  for (size_t i = 0; i < chosen.size() / width; ++i) {
    const std::span<const int32_t> row = chosen.subspan(i * width, width);
    const int32_t query = AuditedQuery(step, static_cast<int32_t>(i), shape.batch * shape.seq_len);
    for (size_t g = 0; g < groups; ++g) {
      tally.Add({.t = query % shape.seq_len,
                 .first = row[0],
                 .blocks = row.subspan(1 + g * n, n),
                 .before = row.subspan(1 + (groups + g) * n, n)});
    }
  }
  return tally.Result();
}

}  // namespace nsa
