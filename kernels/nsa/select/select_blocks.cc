#include "kernels/nsa/select/select_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/cpu_tile.h"
#include "kernels/nsa/branch/attend.h"

namespace nsa {
namespace {

constexpr float kFirstMax = -1e30f;  // finite, so that rows of −inf give 0 and not NaN

int64_t RowsOf(const NsaShape& shape) {
  return int64_t{1} * shape.batch * shape.seq_len * shape.n_kv_groups;
}

absl::Status CheckScores(const NsaShape& shape, const ConstTensor& scores) {
  return CheckTensor("scores", scores, RowsOf(shape) * shape.sel_blocks(), DType::kF32,
                     "B·S·G·S_sel");
}

absl::Status Check(const Exec& exec, const SelectBlocksArgs& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(shape.Validate());
  const DType type = args.q.dtype;
  NSA_RETURN_IF_ERROR(CheckFloating("q", args.q));
  const int64_t lse_size = int64_t{1} * shape.batch * shape.seq_len * shape.n_heads;
  NSA_RETURN_IF_ERROR(CheckTensor("q", args.q, shape.q_size(), type, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("k", args.k, shape.cmp_k_size(), type, "B·S_cmp·G·dk"));
  NSA_RETURN_IF_ERROR(CheckOptional("lse", args.lse, lse_size, DType::kF32, "B·S·H"));
  NSA_RETURN_IF_ERROR(
      CheckTensor("blocks", args.blocks, shape.blocks_size(), DType::kI32, "B·S·G·n"));
  if (args.scores.wanted()) NSA_RETURN_IF_ERROR(CheckScores(shape, args.scores));
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, shape, args.doc_start));
  return CheckBackend(exec, "select_blocks", type);
}

absl::Status Check(const Exec& exec, const ChooseBlocksArgs& args) {
  NSA_RETURN_IF_ERROR(args.shape.Validate());
  NSA_RETURN_IF_ERROR(CheckScores(args.shape, args.scores));
  NSA_RETURN_IF_ERROR(
      CheckTensor("blocks", args.blocks, args.shape.blocks_size(), DType::kI32, "B·S·G·n"));
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, args.shape, args.doc_start));
  return absl::OkStatus();
}

// Orders blocks by higher score, then lower id; NaN comes last. A strict order for every input.
struct Better {
  const float* scores;
  bool operator()(int32_t a, int32_t b) const {
    const float x = Key(a), y = Key(b);
    return x != y ? x > y : a < b;
  }
  float Key(int32_t id) const {
    return std::isnan(scores[id]) ? -std::numeric_limits<float>::infinity() : scores[id];
  }
};

// Writes the n slots of one row. `scores` [S_sel] is read only if there are more than n candidates.
void ChooseRow(const NsaShape& shape, KeyRange candidates, const float* scores,
               std::vector<int32_t>* others, int32_t* slots) {
  const int32_t n = shape.n_sel;
  std::fill(slots, slots + n, -1);
  if (candidates.end - candidates.begin <= n) {
    std::iota(slots, slots + (candidates.end - candidates.begin), candidates.begin);
    return;
  }
  const int32_t current = candidates.end - 1;
  others->clear();
  for (int32_t id = candidates.begin + 1; id <= current - 2; ++id) {
    others->push_back(id);
  }
  const auto best_end = others->begin() + (n - 3);
  std::nth_element(others->begin(), best_end, others->end(), Better{scores});
  slots[0] = candidates.begin;
  slots[1] = current - 1;
  slots[2] = current;
  std::copy(others->begin(), best_end, slots + 3);
  std::sort(slots, slots + n);
}

// Computes the scores of one row at a time. `k_` holds the compressed keys of a group, transposed.
class RowScorer {
 public:
  RowScorer(const SelectBlocksArgs& args, float scale)
      : shape_(args.shape),
        scale_(scale),
        step_(cpu::RoundUp(args.shape.cmp_blocks(), cpu::kPanel) + cpu::kPanel),
        k_(step_ * args.shape.d_k),
        s_(step_ * args.shape.heads_per_group()) {}

  void SetGroup(const float* k) {
    cpu::Transpose(shape_.cmp_blocks(), shape_.d_k, k, int64_t{1} * shape_.n_kv_groups * shape_.d_k,
                   k_.data(), step_);
  }

  // scores[j] ← Σ over the h heads of `q` and the visible blocks. `lse` may be null.
  void Score(const float* q, const float* lse, KeyRange visible, float* scores) {
    std::fill(scores, scores + shape_.sel_blocks(), 0.0f);
    const int32_t count = visible.end - visible.begin;
    if (count <= 0) return;
    const int32_t h = shape_.heads_per_group();
    cpu::MatMul<false>(h, count, shape_.d_k, {q, shape_.d_k, 1}, k_.data() + visible.begin, step_,
                       s_.data(), step_);
    for (int32_t a = 0; a < h; ++a) {
      Probabilities(s_.data() + a * step_, count, lse == nullptr ? nullptr : lse + a);
      if (a == 0) continue;
      for (int32_t i = 0; i < count; ++i) s_[i] += s_[a * step_ + i];
    }
    for (int32_t i = 0; i < count; ++i) MapBlock(visible.begin + i, s_[i], scores);
  }

 private:
  // s ← softmax(scale · s).
  void Probabilities(float* s, int32_t count, const float* lse) {
    for (int32_t i = count; i < cpu::RoundUp(count, cpu::kLanes); ++i) {
      s[i] = -std::numeric_limits<float>::infinity();
    }
    const float shift = lse != nullptr ? *lse : LogSumExp(s, count);
    for (int32_t i = 0; i < count; i += cpu::kLanes) {
      cpu::Store(s + i, cpu::Exp(cpu::Load(s + i) * scale_ - shift));
    }
  }

  float LogSumExp(const float* s, int32_t count) const {
    float max = kFirstMax, sum = 0;
    for (int32_t i = 0; i < count; ++i) max = std::max(max, s[i] * scale_);
    for (int32_t i = 0; i < count; ++i) sum += std::exp(s[i] * scale_ - max);
    return max + std::log(sum);
  }

  // Eq. 9: adds p to each selection block, times the share of block i's l tokens that it contains.
  void MapBlock(int32_t i, float p, float* scores) const {
    const int32_t begin = i * shape_.d, end = begin + shape_.l;
    for (int32_t j = begin / shape_.l_sel; j * shape_.l_sel < end; ++j) {
      const int32_t overlap =
          std::min(end, (j + 1) * shape_.l_sel) - std::max(begin, j * shape_.l_sel);
      scores[j] += p * static_cast<float>(overlap) / static_cast<float>(shape_.l);
    }
  }

  const NsaShape& shape_;
  float scale_;
  int64_t step_;
  std::vector<float> k_;  // [dk, step]
  std::vector<float> s_;  // [h, step]
};

// Scratch memory to process one group of one batch row, token by token.
struct SelectScratch {
  RowScorer scorer;
  std::vector<float> scores;  // [S_sel]
  std::vector<int32_t> others;
};

void SelectGroup(const SelectBlocksArgs& args, int32_t b, int32_t g, SelectScratch* scratch) {
  const NsaShape& shape = args.shape;
  const auto* q = static_cast<const float*>(args.q.data);
  const auto* lse = static_cast<const float*>(args.lse.data);
  auto* blocks = static_cast<int32_t*>(args.blocks.data);
  auto* wanted = static_cast<float*>(args.scores.data);
  bool group_set = false;
  for (int32_t t = 0; t < shape.seq_len; ++t) {
    const int64_t token = int64_t{b} * shape.seq_len + t;
    const int64_t row = token * shape.n_kv_groups + g;
    const int64_t head = token * shape.n_heads + g * shape.heads_per_group();
    const int32_t first = DocStart(args.doc_start, shape, b, t);
    const KeyRange candidates = CandidateBlocks(shape, t, first);
    float* scores = wanted == nullptr ? scratch->scores.data() : wanted + row * shape.sel_blocks();
    if (wanted != nullptr || candidates.end - candidates.begin > shape.n_sel) {
      if (!group_set) {
        const int64_t base = int64_t{b} * shape.cmp_blocks() * shape.n_kv_groups + g;
        scratch->scorer.SetGroup(static_cast<const float*>(args.k.data) + base * shape.d_k);
        group_set = true;
      }
      scratch->scorer.Score(q + head * shape.d_k, lse == nullptr ? nullptr : lse + head,
                            BranchRule<kCmp>::Keys(shape, t, first), scores);
    }
    ChooseRow(shape, candidates, scores, &scratch->others, blocks + row * shape.n_sel);
  }
}

}  // namespace

absl::Status SelectBlocks(const Exec& exec, const SelectBlocksArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("select_blocks");
  if (exec.backend == Backend::kCuda) return cuda::SelectBlocks(exec, args);
  const int64_t pairs = int64_t{1} * args.shape.batch * args.shape.n_kv_groups;
#pragma omp parallel
  {
    SelectScratch scratch{RowScorer(args, ScaleOf(args.shape, args.scale)),
                          std::vector<float>(args.shape.sel_blocks()),
                          {}};
#pragma omp for schedule(dynamic, 1)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      SelectGroup(args, static_cast<int32_t>(pair / args.shape.n_kv_groups),
                  static_cast<int32_t>(pair % args.shape.n_kv_groups), &scratch);
    }
  }
  return absl::OkStatus();
}

absl::Status ChooseBlocks(const Exec& exec, const ChooseBlocksArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("choose_blocks");
  if (exec.backend == Backend::kCuda) return cuda::ChooseBlocks(exec, args);
  const NsaShape& shape = args.shape;
  const auto* scores = static_cast<const float*>(args.scores.data);
  auto* blocks = static_cast<int32_t*>(args.blocks.data);
#pragma omp parallel
  {
    std::vector<int32_t> others;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < RowsOf(shape); ++row) {
      const int64_t token = row / shape.n_kv_groups;
      const int32_t b = static_cast<int32_t>(token / shape.seq_len);
      const int32_t t = static_cast<int32_t>(token % shape.seq_len);
      ChooseRow(shape, CandidateBlocks(shape, t, DocStart(args.doc_start, shape, b, t)),
                scores + row * shape.sel_blocks(), &others, blocks + row * shape.n_sel);
    }
  }
  return absl::OkStatus();
}

}  // namespace nsa
