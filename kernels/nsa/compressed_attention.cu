// Compressed branch on CUDA; the kernels are in attention_forward.cuh and attention_backward.cuh.
#include "kernels/cuda/kernels.h"
#include "kernels/nsa/attention_launch.cuh"
#include "kernels/nsa/compressed_attention.h"

namespace nsa::cuda {

absl::Status CompressedAttention(const Exec& exec, const CompressedAttentionArgs& args) {
  return LaunchForward<Kind::kCompressed>(exec, args, ProblemOf(args, args.shape.cmp_blocks()),
                                          "compressed_attention");
}

absl::Status CompressedAttentionBackward(const Exec& exec,
                                         const CompressedAttentionBackwardArgs& args) {
  return LaunchBackward<Kind::kCompressed>(
      exec, args, ProblemOf(args, args.shape.cmp_blocks()), CompressedScratch(args.shape),
      CompressedSegments(args.shape), "compressed_attention_backward");
}

}  // namespace nsa::cuda
