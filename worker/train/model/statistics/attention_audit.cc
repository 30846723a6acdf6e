#include "worker/train/model/statistics/attention_audit.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/device.h"
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

int32_t QueriesOf(const LayerAudit& audit) {
  return std::min(kAuditedQueries, audit.config.shape.batch * audit.config.shape.seq_len);
}

int32_t PairsOf(const LayerAudit& audit) { return QueriesOf(audit) * audit.config.shape.n_heads; }

// Writes the kept masses of the branches one behind the other.
absl::Status Enqueue(const Exec& exec, const LayerAudit& audit, float* kept) {
  const NsaLayerSaved memory = LayoutSaved(audit.config, audit.saved);
  for (const Branch branch : kAudited) {
    if (!audit.config.has(branch)) continue;
    NSA_RETURN_IF_ERROR(AuditAttention(exec, {.shape = audit.config.shape,
                                              .branch = branch,
                                              .q = memory.q,
                                              .k = memory.k[branch],
                                              .blocks = branch == kSel ? memory.blocks : Tensor(),
                                              .doc_start = audit.doc_start,
                                              .step = audit.step,
                                              .queries = QueriesOf(audit),
                                              .kept = {kept, PairsOf(audit), DType::kF32}}));
    kept += PairsOf(audit);
  }
  return absl::OkStatus();
}

v1::AttentionAudit Summarise(const LayerAudit& audit, std::span<const float> kept) {
  const int32_t pairs = PairsOf(audit);
  v1::AttentionAudit record;
  record.set_queries(pairs);
  if (audit.config.has(kSel)) {
    record.set_selected_mass(MeanOf(kept.first(pairs)));
    record.set_selected_mass_p10(TenthPercentile(kept.first(pairs)));
  }
  if (audit.config.has(kWin)) record.set_window_mass(MeanOf(kept.last(pairs)));
  return record;
}

}  // namespace

int64_t LayerAudit::size() const {
  return int64_t{config.has(kSel) + config.has(kWin)} * PairsOf(*this);
}

absl::StatusOr<v1::AttentionAudit> LayerAudit::Run(const Exec& exec, void* memory) const {
  float* const kept = static_cast<float*>(memory);
  NSA_RETURN_IF_ERROR(Enqueue(exec, *this, kept));
  if (exec.backend == Backend::kCpu) {
    return Summarise(*this, {kept, static_cast<size_t>(size())});
  }
  std::vector<float> host(size());
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, host.data(), kept, 4 * size()));
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec.stream));
  return Summarise(*this, host);
}

}  // namespace nsa
