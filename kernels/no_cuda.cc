// Build without CUDA: the GPU half of every family returns an error. This is the only file that
// includes all families.
#include "absl/strings/str_cat.h"
#include "kernels/nn/activation.h"
#include "kernels/nn/bias.h"
#include "kernels/nn/copy.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/matmul.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/rope.h"
#include "kernels/nn/swiglu.h"
#include "kernels/nsa/audit/audit.h"
#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/branch/selected_attention.h"
#include "kernels/nsa/branch/window_attention.h"
#include "kernels/nsa/compress/compress.h"
#include "kernels/nsa/decode/attend_rows.h"
#include "kernels/nsa/decode/project_row.h"
#include "kernels/nsa/decode/row_linear.h"
#include "kernels/nsa/gate/gate.h"
#include "kernels/nsa/layer/head_parts.h"
#include "kernels/nsa/layer/projections.h"
#include "kernels/nsa/select/select_blocks.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/global_norm.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/parameters_hash.h"
#include "kernels/optimizer/step.h"

namespace nsa::cuda {
namespace {

absl::Status Missing(const char* kernel) {
  return absl::UnimplementedError(absl::StrCat(
      kernel,
      ": backend cuda (this program was built without CUDA); use nsa-worker-cuda, or device: cpu"));
}

}  // namespace

absl::Status AttendCached(const Exec&, const AttendCachedArgs&) { return Missing("AttendCached"); }
absl::Status AuditAttention(const Exec&, const AuditArgs&) { return Missing("AuditAttention"); }
absl::Status AuditChoices(const Exec&, const AuditChoicesArgs&) { return Missing("AuditChoices"); }
absl::Status Compress(const Exec&, const CompressArgs&) { return Missing("Compress"); }
absl::Status CompressBackward(const Exec&, const CompressBackwardArgs&) {
  return Missing("CompressBackward");
}
absl::Status CompressKeysAndValues(const Exec&, const CompressArgs&, const CompressArgs&) {
  return Missing("CompressKeysAndValues");
}
absl::Status CompressKeysAndValuesBackward(const Exec&, const CompressBackwardArgs&,
                                           const CompressBackwardArgs&) {
  return Missing("CompressKeysAndValuesBackward");
}
absl::Status CompressedAttention(const Exec&, const BranchArgs&) {
  return Missing("CompressedAttention");
}
absl::Status CompressedAttentionBackward(const Exec&, const BranchBackwardArgs&) {
  return Missing("CompressedAttentionBackward");
}
absl::Status ProjectRow(const Exec&, const ProjectRowArgs&) { return Missing("ProjectRow"); }
absl::Status RowLinear(const Exec&, const RowLinearArgs&) { return Missing("RowLinear"); }
absl::Status SelectBlocks(const Exec&, const SelectBlocksArgs&) { return Missing("SelectBlocks"); }
absl::Status ChooseBlocks(const Exec&, const ChooseBlocksArgs&) { return Missing("ChooseBlocks"); }
absl::Status SelectedAttention(const Exec&, const BranchArgs&) {
  return Missing("SelectedAttention");
}
absl::Status SelectedAttentionBackward(const Exec&, const BranchBackwardArgs&) {
  return Missing("SelectedAttentionBackward");
}
absl::Status WindowAttention(const Exec&, const BranchArgs&) { return Missing("WindowAttention"); }
absl::Status WindowAttentionBackward(const Exec&, const BranchBackwardArgs&) {
  return Missing("WindowAttentionBackward");
}
absl::Status Gate(const Exec&, const GateArgs&) { return Missing("Gate"); }
absl::Status GateBackward(const Exec&, const GateBackwardArgs&) { return Missing("GateBackward"); }
absl::Status AddMeanGradient(const Exec&, const AddMeanGradientArgs&) {
  return Missing("AddMeanGradient");
}
absl::Status SplitHeads(const Exec&, const SplitHeadsArgs&) { return Missing("SplitHeads"); }
absl::Status JoinHeads(const Exec&, const JoinHeadsArgs&) { return Missing("JoinHeads"); }
absl::Status SplitProjections(const Exec&, const SplitProjectionsArgs&) {
  return Missing("SplitProjections");
}
absl::Status JoinProjections(const Exec&, const JoinProjectionsArgs&) {
  return Missing("JoinProjections");
}
absl::Status Rope(const Exec&, const RopeArgs&) { return Missing("Rope"); }
absl::Status RopeAngles(const Exec&, int32_t, int32_t, float, float, const RopeScaling&,
                        const Tensor&) {
  return Missing("RopeAngles");
}
absl::Status Matmul(const Exec&, const MatmulArgs&) { return Missing("Matmul"); }
absl::Status RmsNorm(const Exec&, const RmsNormArgs&) { return Missing("RmsNorm"); }
absl::Status RmsNormBackward(const Exec&, const RmsNormBackwardArgs&) {
  return Missing("RmsNormBackward");
}
absl::Status Activate(const Exec&, const ActivateArgs&) { return Missing("Activate"); }
absl::Status ActivateBackward(const Exec&, const ActivateBackwardArgs&) {
  return Missing("ActivateBackward");
}
absl::Status AddBias(const Exec&, const AddBiasArgs&) { return Missing("AddBias"); }
absl::Status BiasGradient(const Exec&, const BiasGradientArgs&) { return Missing("BiasGradient"); }
absl::Status Swiglu(const Exec&, const SwigluArgs&) { return Missing("Swiglu"); }
absl::Status SwigluBackward(const Exec&, const SwigluBackwardArgs&) {
  return Missing("SwigluBackward");
}
absl::Status Embedding(const Exec&, const EmbeddingArgs&) { return Missing("Embedding"); }
absl::Status EmbeddingBackward(const Exec&, const EmbeddingBackwardArgs&) {
  return Missing("EmbeddingBackward");
}
absl::Status CrossEntropy(const Exec&, const CrossEntropyArgs&) { return Missing("CrossEntropy"); }
absl::Status MeanRowLoss(const Exec&, const MeanRowLossArgs&) { return Missing("MeanRowLoss"); }
absl::Status GlobalNorm(const Exec&, const GlobalNormArgs&) { return Missing("GlobalNorm"); }
absl::Status SquareSum(const Exec&, const SquareSumArgs&) { return Missing("SquareSum"); }
absl::Status NormOfSums(const Exec&, const NormOfSumsArgs&) { return Missing("NormOfSums"); }
absl::Status AdamW(const Exec&, const AdamWArgs&) { return Missing("AdamW"); }
absl::Status ParametersHash(const Exec&, const ParametersHashArgs&) {
  return Missing("ParametersHash");
}
absl::Status MuonMomentum(const Exec&, const MuonArgs&, std::span<const MuonMatrix>,
                          const MuonScratch&) {
  return Missing("Muon");
}
absl::Status MuonUpdate(const Exec&, const MuonArgs&, std::span<const MuonMatrix>,
                        const MuonScratch&) {
  return Missing("Muon");
}
absl::Status Copy(const Exec&, const ConstTensor&, const Tensor&) { return Missing("Copy"); }
absl::Status Zero(const Exec&, const Tensor&) { return Missing("Zero"); }
absl::Status ZeroRanges(const Exec&, const Tensor&, std::span<const ElementRange>) {
  return Missing("ZeroRanges");
}
absl::Status AddTo(const Exec&, const ConstTensor&, const Tensor&) { return Missing("AddTo"); }
absl::Status Convert(const Exec&, const ConstTensor&, const Tensor&) { return Missing("Convert"); }
absl::Status MeanLoss(const Exec&, const MeanLossArgs&) { return Missing("MeanLoss"); }
absl::Status DecideUpdate(const Exec&, const DecideUpdateArgs&) { return Missing("DecideUpdate"); }
absl::Status Mark(const Exec&, PendingMark) { return Missing("Mark"); }
absl::Status Spin(const Exec&, const int32_t*) { return Missing("Spin"); }

int64_t RmsNormBackwardWorkspaceBytes(int64_t) { return 0; }
int64_t HeadWeightGradientWorkspaceBytes(int64_t) { return 0; }
int64_t BiasGradientWorkspaceBytes(int64_t) { return 0; }
int64_t EmbeddingBackwardWorkspaceBytes(int64_t, int64_t, int64_t) { return 0; }
int64_t GlobalNormWorkspaceBytes(int64_t) { return 0; }

}  // namespace nsa::cuda
