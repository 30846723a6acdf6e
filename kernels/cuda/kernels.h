// The CUDA side of every kernel family, called by the family's own function (nsa::WindowAttention
// checks its arguments and comes here when the Exec says CUDA). Implemented by the .cu files; in a
// build without CUDA by no_cuda.cc, where each answers Unimplemented. Arguments have been checked;
// activations and weights are bf16, sums and gradients of parameters fp32. Everything is enqueued
// on exec.stream; with an exec.side, a branch's backward leaves dk and dv on that, and the caller
// joins (side.h).
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/nn/adamw.h"
#include "kernels/nn/copy.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/global_norm.h"
#include "kernels/nn/matmul.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/rope.h"
#include "kernels/nn/silu.h"
#include "kernels/nsa/attention.h"
#include "kernels/nsa/compress.h"
#include "kernels/nsa/compressed_attention.h"
#include "kernels/nsa/gate.h"
#include "kernels/nsa/projections.h"
#include "kernels/nsa/select_blocks.h"
#include "kernels/nsa/selected_attention.h"
#include "kernels/nsa/window_attention.h"

namespace nsa::cuda {

absl::Status Compress(const Exec& exec, const CompressArgs& args);
absl::Status CompressBackward(const Exec& exec, const CompressBackwardArgs& args);
absl::Status CompressedAttention(const Exec& exec, const CompressedAttentionArgs& args);
absl::Status CompressedAttentionBackward(const Exec& exec,
                                         const CompressedAttentionBackwardArgs& args);
absl::Status SelectBlocks(const Exec& exec, const SelectBlocksArgs& args);
absl::Status ChooseBlocks(const Exec& exec, const ChooseBlocksArgs& args);
absl::Status SelectedAttention(const Exec& exec, const SelectedAttentionArgs& args);
absl::Status SelectedAttentionBackward(const Exec& exec, const SelectedAttentionBackwardArgs& args);
absl::Status WindowAttention(const Exec& exec, const WindowAttentionArgs& args);
absl::Status WindowAttentionBackward(const Exec& exec, const WindowAttentionBackwardArgs& args);
absl::Status Gate(const Exec& exec, const GateArgs& args);
absl::Status GateBackward(const Exec& exec, const GateBackwardArgs& args);
absl::Status AddMeanGradient(const Exec& exec, const AddMeanGradientArgs& args);
absl::Status SplitProjections(const Exec& exec, const SplitProjectionsArgs& args);
absl::Status JoinProjections(const Exec& exec, const JoinProjectionsArgs& args);
absl::Status Rope(const Exec& exec, const RopeArgs& args);
absl::Status Matmul(const Exec& exec, const MatmulArgs& args);
absl::Status RmsNorm(const Exec& exec, const RmsNormArgs& args);
absl::Status RmsNormBackward(const Exec& exec, const RmsNormBackwardArgs& args);
absl::Status Silu(const Exec& exec, const SiluArgs& args);
absl::Status SiluBackward(const Exec& exec, const SiluBackwardArgs& args);
absl::Status Embedding(const Exec& exec, const EmbeddingArgs& args);
absl::Status EmbeddingBackward(const Exec& exec, const EmbeddingBackwardArgs& args);
absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args);
absl::Status GlobalNorm(const Exec& exec, const GlobalNormArgs& args);
absl::Status AdamW(const Exec& exec, const AdamWArgs& args);
absl::Status Copy(const Exec& exec, const ConstTensor& from, const Tensor& to);
absl::Status Zero(const Exec& exec, const Tensor& to);

// Scratch memory that a family's kernels take from Exec::workspace, bytes. That of the branches
// and φ, which grows with the shape: common/attention_scratch.h.
int64_t GateWorkspaceBytes(const NsaShape& shape);
int64_t RmsNormBackwardWorkspaceBytes(int64_t dim);
int64_t EmbeddingBackwardWorkspaceBytes(int64_t vocab, int64_t dim);
int64_t GlobalNormWorkspaceBytes(int64_t size);

// How an attention layer cuts Exec::workspace, so that the branches may run side by side: where a
// branch's part begins in backward, and φ's. All else in the layer begins at 0, and runs alone.
struct AttentionScratch {
  std::array<int64_t, kBranches> branch = {};
  int64_t phi = 0;
  int64_t bytes = 0;  // in all
};
AttentionScratch PlanAttentionScratch(const AttentionConfig& config);

}  // namespace nsa::cuda
