// Window branch on CUDA; the kernels are in attention_forward.cuh and attention_backward.cuh. A
// query tile of 21 tokens covers w + 20 keys, and each row sees w of them; with whole tiles of 64
// keys the matrix unit does up to (w + 63 + 20)/w times the necessary work, 1.16 at w = 512.
#include "kernels/nsa/branch/attention_launch.cuh"
#include "kernels/nsa/branch/window_attention.h"

namespace nsa::cuda {

absl::Status WindowAttention(const Exec& exec, const BranchArgs& args) {
  return LaunchForward<kWin>(exec, args, ProblemOf(args, args.shape.seq_len), "window_attention");
}

absl::Status WindowAttentionBackward(const Exec& exec, const BranchBackwardArgs& args) {
  return LaunchBackward<kWin>(exec, args, ProblemOf(args, args.shape.seq_len),
                              RangeScratch(args.shape, kWin), RangeSegments(args.shape, kWin),
                              "window_attention_backward");
}

}  // namespace nsa::cuda
