#include "worker/train/model/attention_audit.h"

#include <algorithm>
#include <numeric>

#include "common/base/status.h"
#include "kernels/nsa/audit/audit.h"

namespace nsa {
namespace {

constexpr Branch kAudited[] = {kSel, kWin};

double MeanOf(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The value that a tenth of the others are at most.
double TenthPercentile(std::span<const float> values) {
  std::vector<float> sorted(values.begin(), values.end());
  const auto at = sorted.begin() + static_cast<int64_t>(sorted.size() - 1) / 10;
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

}  // namespace

int32_t LayerAudit::queries() const {
  return std::min(kAuditedQueries, config.shape.batch * config.shape.seq_len);
}

int64_t LayerAudit::size() const {
  return int64_t{config.has(kSel) + config.has(kWin)} * queries() * config.shape.n_heads;
}

absl::Status LayerAudit::Enqueue(const Exec& exec, const Tensor& kept) const {
  const NsaLayerSaved memory = LayoutSaved(config, saved);
  const int64_t pairs = int64_t{1} * queries() * config.shape.n_heads;
  float* out = static_cast<float*>(kept.data);
  for (const Branch branch : kAudited) {
    if (!config.has(branch)) continue;
    NSA_RETURN_IF_ERROR(AuditAttention(exec, {.shape = config.shape,
                                              .branch = branch,
                                              .q = memory.q,
                                              .k = memory.k[branch],
                                              .blocks = branch == kSel ? memory.blocks : Tensor(),
                                              .doc_start = doc_start,
                                              .step = step,
                                              .queries = queries(),
                                              .kept = {out, pairs, DType::kF32}}));
    out += pairs;
  }
  return absl::OkStatus();
}

v1::AttentionAudit LayerAudit::Summarise(std::span<const float> kept) const {
  const int32_t pairs = queries() * config.shape.n_heads;
  v1::AttentionAudit audit;
  audit.set_queries(pairs);
  if (config.has(kSel)) {
    audit.set_selected_mass(MeanOf(kept.first(pairs)));
    audit.set_selected_mass_p10(TenthPercentile(kept.first(pairs)));
  }
  if (config.has(kWin)) audit.set_window_mass(MeanOf(kept.last(pairs)));
  return audit;
}

}  // namespace nsa
