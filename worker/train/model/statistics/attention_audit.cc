#include "worker/train/model/statistics/attention_audit.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/nsa/audit/audit.h"

namespace nsa::train {
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

// Copies `count` values of 4 bytes from `memory` to the host.
template <class T>
absl::StatusOr<std::vector<T>> ToHost(const Exec& exec, const void* memory, int64_t count) {
  std::vector<T> host(count);
  if (exec.backend == Backend::kCpu) {
    std::memcpy(host.data(), memory, 4 * count);
    return host;
  }
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, host.data(), memory, 4 * count));
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec.stream));
  return host;
}

// What the selection chose; nothing without the branch sel.
absl::Status AddChoice(const Exec& exec, const LayerAudit& audit, void* memory,
                       v1::AttentionAudit* record) {
  const NsaShape& shape = audit.config.shape;
  if (!audit.config.has(kSel)) return absl::OkStatus();
  const int64_t room = shape.q_size() / 2;  // values of 4 bytes in the memory
  const auto queries =
      static_cast<int32_t>(std::min<int64_t>(QueriesOf(audit), room / ChoiceWidth(shape)));
  if (queries < 1) return absl::OkStatus();
  const int64_t count = int64_t{queries} * ChoiceWidth(shape);
  NSA_RETURN_IF_ERROR(AuditChoices(exec, {.shape = shape,
                                          .blocks = LayoutSaved(audit.config, audit.saved).blocks,
                                          .doc_start = audit.doc_start,
                                          .step = audit.step,
                                          .queries = queries,
                                          .chosen = {memory, count, DType::kI32}}));
  NSA_ASSIGN_OR_RETURN(const std::vector<int32_t> chosen, ToHost<int32_t>(exec, memory, count));
  const ChoiceStats stats = SummariseChoices(shape, audit.step, audit.config.has(kWin), chosen);
  v1::SelectionChoice& choice = *record->mutable_choice();
  choice.set_rows(stats.rows);
  choice.set_window_overlap_ratio(stats.window_overlap);
  choice.set_entropy_ratio(stats.entropy);
  choice.set_neighbour_agreement_ratio(stats.neighbour_agreement);
  choice.set_free_choices(stats.free_choices);
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
  NSA_ASSIGN_OR_RETURN(const std::vector<float> host, ToHost<float>(exec, kept, size()));
  v1::AttentionAudit record = Summarise(*this, host);
  NSA_RETURN_IF_ERROR(AddChoice(exec, *this, memory, &record));
  return record;
}

}  // namespace nsa::train
