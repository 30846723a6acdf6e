#include "kernels/nsa/audit/audit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/nsa/branch/attend.h"

namespace nsa {
namespace {

absl::Status CheckSample(const AuditArgs& args) {
  if (args.branch != kSel && args.branch != kWin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("branch: %d (sel or win); only these read tokens", args.branch));
  }
  NSA_RETURN_IF_ERROR(CheckAtLeast("queries", args.queries, 1));
  if (args.queries <= kAuditedQueries) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("queries: %d (at most %d); sample fewer", args.queries, kAuditedQueries));
}

absl::Status Check(const Exec& exec, const AuditArgs& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(shape.Validate());
  NSA_RETURN_IF_ERROR(CheckSample(args));
  const DType type = args.q.dtype;
  NSA_RETURN_IF_ERROR(CheckFloating("q", args.q));
  NSA_RETURN_IF_ERROR(CheckTensor("q", args.q, shape.q_size(), type, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("k", args.k, shape.k_size(), type, "B·S·G·dk"));
  if (args.branch == kSel) {
    NSA_RETURN_IF_ERROR(
        CheckTensor("blocks", args.blocks, shape.blocks_size(), DType::kI32, "B·S·G·n"));
  }
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, shape, args.doc_start));
  NSA_RETURN_IF_ERROR(CheckTensor("kept", args.kept, int64_t{1} * args.queries * shape.n_heads,
                                  DType::kF32, "N·H"));
  return CheckBackend(exec, "audit", type);
}

// Where a query is: token t of row b, with its document's first token.
struct Query {
  int32_t b, t, first;
};

// Fills `ranges` with the keys that the branch reads.
void RangesRead(const AuditArgs& args, const Query& at, int32_t g, std::vector<KeyRange>* ranges) {
  const NsaShape& shape = args.shape;
  ranges->clear();
  if (args.branch == kWin) {
    PushRange(BranchRule<kWin>::Keys(shape, at.t, at.first), ranges);
    return;
  }
  const int64_t row = (int64_t{at.b} * shape.seq_len + at.t) * shape.n_kv_groups + g;
  const int32_t* const ids = static_cast<const int32_t*>(args.blocks.data) + row * shape.n_sel;
  const KeyRange seen = BranchRule<kSel>::Keys(shape, at.t, at.first);
  for (int32_t i = 0; i < shape.n_sel; ++i) {
    if (ids[i] >= 0) PushRange(Intersection(seen, SelectionBlock(shape, ids[i])), ranges);
  }
}

// Σ_c x[c] · y[c], as eight sums side by side. `width` is a multiple of 16.
float Dot(const float* x, const float* y, int32_t width) {
  float sums[8] = {};
  for (int32_t c = 0; c < width; c += 8) {
    for (int32_t lane = 0; lane < 8; ++lane) sums[lane] += x[c + lane] * y[c + lane];
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The share of head a's softmax mass that lies in `ranges`. `weights` is scratch memory [S].
double Kept(const AuditArgs& args, const Query& at, int32_t a, const std::vector<KeyRange>& ranges,
            std::vector<double>* weights) {
  const NsaShape& shape = args.shape;
  const int32_t dk = shape.d_k, g = a / shape.heads_per_group();
  const int64_t token = int64_t{at.b} * shape.seq_len + at.t;
  const float* const q = static_cast<const float*>(args.q.data) + (token * shape.n_heads + a) * dk;
  const auto* const keys = static_cast<const float*>(args.k.data);
  const double scale = ScaleOf(shape, args.scale);
  const KeyRange seen = BranchRule<kSel>::Keys(shape, at.t, at.first);
  double max = -HUGE_VAL, total = 0, kept = 0;
  for (int32_t j = seen.begin; j < seen.end; ++j) {
    const int64_t key = (int64_t{at.b} * shape.seq_len + j) * shape.n_kv_groups + g;
    (*weights)[j] = scale * Dot(q, keys + key * dk, dk);
    max = std::max(max, (*weights)[j]);
  }
  for (int32_t j = seen.begin; j < seen.end; ++j) {
    total += (*weights)[j] = std::exp((*weights)[j] - max);
  }
  for (const KeyRange& range : ranges) {
    for (int32_t j = range.begin; j < range.end; ++j) kept += (*weights)[j];
  }
  return kept / total;
}

// All heads of the i-th sampled query.
void AuditQuery(const AuditArgs& args, int32_t i, std::vector<KeyRange>* ranges,
                std::vector<double>* weights) {
  const NsaShape& shape = args.shape;
  const int32_t sampled = AuditedQuery(args.step, i, shape.batch * shape.seq_len);
  Query at{.b = sampled / shape.seq_len, .t = sampled % shape.seq_len, .first = 0};
  at.first = DocStart(args.doc_start, shape, at.b, at.t);
  float* const kept = static_cast<float*>(args.kept.data) + int64_t{i} * shape.n_heads;
  for (int32_t a = 0; a < shape.n_heads; ++a) {
    if (a % shape.heads_per_group() == 0) {
      RangesRead(args, at, a / shape.heads_per_group(), ranges);
    }
    kept[a] = static_cast<float>(Kept(args, at, a, *ranges, weights));
  }
}

}  // namespace

absl::Status AuditAttention(const Exec& exec, const AuditArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("audit");
  if (exec.backend == Backend::kCuda) return cuda::AuditAttention(exec, args);
#pragma omp parallel
  {
    std::vector<KeyRange> ranges;
    std::vector<double> weights(args.shape.seq_len);
#pragma omp for schedule(dynamic, 1)
    for (int32_t i = 0; i < args.queries; ++i) AuditQuery(args, i, &ranges, &weights);
  }
  return absl::OkStatus();
}

}  // namespace nsa
