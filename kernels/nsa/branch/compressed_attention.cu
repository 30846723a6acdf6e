// Compressed branch on CUDA; the kernels are in attention_forward.cuh and attention_backward.cuh.
#include "kernels/nsa/branch/attention_launch.cuh"
#include "kernels/nsa/branch/compressed_attention.h"

namespace nsa::cuda {

absl::Status CompressedAttention(const Exec& exec, const BranchArgs& args) {
  return LaunchForward<kCmp>(exec, args, ProblemOf(args, args.shape.cmp_blocks()),
                             "compressed_attention");
}

absl::Status CompressedAttentionBackward(const Exec& exec, const BranchBackwardArgs& args) {
  return LaunchBackward<kCmp>(exec, args, ProblemOf(args, args.shape.cmp_blocks()),
                              RangeScratch(args.shape, kCmp), RangeSegments(args.shape, kCmp),
                              "compressed_attention_backward");
}

}  // namespace nsa::cuda
