// Window branch on CUDA; the kernels are in attention_forward.cuh and attention_backward.cuh. A
// query tile of 21 tokens walks w + 20 keys, of which w are a row's own: (w + 63 + 20)/w, 1.16 at w
// = 512, is what the matrix unit does for each product that counts.
#include "kernels/nsa/branch/attention_launch.cuh"
#include "kernels/nsa/branch/window_attention.h"

namespace nsa::cuda {

absl::Status WindowAttention(const Exec& exec, const BranchArgs& args) {
  return LaunchForward<kWin>(exec, args, ProblemOf(args, args.shape.seq_len), "window_attention");
}

absl::Status WindowAttentionBackward(const Exec& exec, const BranchBackwardArgs& args) {
  return LaunchBackward<kWin>(exec, args, ProblemOf(args, args.shape.seq_len),
                              WindowScratch(args.shape), WindowSegments(args.shape),
                              "window_attention_backward");
}

}  // namespace nsa::cuda
