// Compressed branch on CUDA; the kernels are in attention_forward.cuh and attention_backward.cuh.
// There are few keys (S/d) and each is seen by every later token, so the key-major kernel cuts the
// tokens into segments for enough blocks to fill the GPU.
#include "kernels/cuda/kernels.h"
#include "kernels/nsa/attention_launch.cuh"
#include "kernels/nsa/compressed_attention.h"

namespace nsa::cuda {
namespace {

// Enough segments for some thousand blocks in all, of 64 tokens or more and of 2,048 or fewer.
Segments SegmentsOf(const NsaShape& shape) {
  const int tiles =
      CeilDiv(std::max(1, shape.cmp_blocks()), kKeyTile) * shape.batch * shape.n_kv_groups;
  const int fewest = CeilDiv(shape.seq_len, 2048), most = CeilDiv(shape.seq_len, 64);
  const int count = std::clamp(1024 / tiles, fewest, std::max(fewest, std::min(32, most)));
  return {CeilDiv(shape.seq_len, count), count};
}

int64_t PartialFloats(const NsaShape& shape) {
  const Segments segments = SegmentsOf(shape);
  if (segments.count == 1) return 0;
  return int64_t{1} * CeilDiv(shape.cmp_blocks(), kKeyTile) * shape.batch * shape.n_kv_groups *
         segments.count * kKeyTile * 2 * std::max(shape.d_k, shape.d_v);
}

}  // namespace

absl::Status CompressedAttention(const Exec& exec, const CompressedAttentionArgs& args) {
  return LaunchForward<Kind::kCompressed>(exec, args, ProblemOf(args, args.shape.cmp_blocks()),
                                          "compressed_attention");
}

absl::Status CompressedAttentionBackward(const Exec& exec,
                                         const CompressedAttentionBackwardArgs& args) {
  const AttentionProblem p = ProblemOf(args, args.shape.cmp_blocks());
  NSA_ASSIGN_OR_RETURN(void* const workspace,
                       WorkspaceOf(exec, CompressedBackwardWorkspaceBytes(args.shape),
                                   "compressed_attention_backward"));
  auto* stats = static_cast<float2*>(workspace);
  auto* partial = reinterpret_cast<float*>(stats + StatsBytes(args.shape) / sizeof(float2));
  const AttentionGradients grad = GradientsOf(args, stats);
  NSA_RETURN_IF_ERROR(
      LaunchDq<Kind::kCompressed>(exec, args, p, grad, stats, "compressed_attention_dq"));
  if (p.keys == 0) return absl::OkStatus();
  return LaunchDkv<Kind::kCompressed>(OnSide(exec), args, p, grad, SegmentsOf(args.shape), partial,
                                      "compressed_attention_dkv");
}

int64_t CompressedBackwardWorkspaceBytes(const NsaShape& shape) {
  return StatsBytes(shape) + PartialFloats(shape) * static_cast<int64_t>(sizeof(float));
}

}  // namespace nsa::cuda
