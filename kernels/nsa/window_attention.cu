// Window branch on CUDA; the kernels are in attention_forward.cuh and attention_backward.cuh. A
// query tile of 21 tokens walks w + 20 keys, of which w are a row's own: (w + 63 + 20)/w, 1.16 at w
// = 512, is what the matrix unit does for each product that counts.
#include "kernels/cuda/kernels.h"
#include "kernels/nsa/attention_launch.cuh"
#include "kernels/nsa/window_attention.h"

namespace nsa::cuda {
namespace {

// Tokens that may see a key tile are one segment, unless the tiles alone are too few to fill a GPU:
// then some five hundred blocks in all, of 128 tokens or more.
Segments SegmentsOf(const NsaShape& shape) {
  const int tiles = CeilDiv(shape.seq_len, kKeyTile) * shape.batch * shape.n_kv_groups;
  const int tokens =
      static_cast<int>(std::min<int64_t>(shape.seq_len, int64_t{shape.window} + kKeyTile - 1));
  const int count = std::clamp(512 / tiles, 1, CeilDiv(tokens, 128));
  return {CeilDiv(tokens, count), count};
}

int64_t PartialBytes(const NsaShape& shape) {
  const Segments segments = SegmentsOf(shape);
  if (segments.count == 1) return 0;
  const int64_t tiles =
      int64_t{1} * CeilDiv(shape.seq_len, kKeyTile) * shape.batch * shape.n_kv_groups;
  return 4 * tiles * segments.count * kKeyTile * 2 * std::max(shape.d_k, shape.d_v);
}

}  // namespace

absl::Status WindowAttention(const Exec& exec, const WindowAttentionArgs& args) {
  return LaunchForward<Kind::kWindow>(exec, args, ProblemOf(args, args.shape.seq_len),
                                      "window_attention");
}

absl::Status WindowAttentionBackward(const Exec& exec, const WindowAttentionBackwardArgs& args) {
  const AttentionProblem p = ProblemOf(args, args.shape.seq_len);
  NSA_ASSIGN_OR_RETURN(
      void* const workspace,
      WorkspaceOf(exec, WindowBackwardWorkspaceBytes(args.shape), "window_attention_backward"));
  auto* stats = static_cast<float2*>(workspace);
  const AttentionGradients grad = GradientsOf(args, stats);
  NSA_RETURN_IF_ERROR(LaunchDq<Kind::kWindow>(exec, args, p, grad, stats, "window_attention_dq"));
  auto* partial = reinterpret_cast<float*>(stats + StatsBytes(args.shape) / sizeof(float2));
  return LaunchDkv<Kind::kWindow>(OnSide(exec), args, p, grad, SegmentsOf(args.shape), partial,
                                  "window_attention_dkv");
}

int64_t WindowBackwardWorkspaceBytes(const NsaShape& shape) {
  return StatsBytes(shape) + PartialBytes(shape);
}

}  // namespace nsa::cuda
