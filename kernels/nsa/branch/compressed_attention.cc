#include "kernels/nsa/branch/compressed_attention.h"

#include "common/base/status.h"
#include "kernels/nsa/branch/attend.h"

namespace nsa {

absl::Status CompressedAttention(const Exec& exec, const BranchArgs& args) {
  constexpr const char* kName = "compressed_attention";
  NSA_RETURN_IF_ERROR(args.shape.Validate());
  const int32_t keys = args.shape.cmp_blocks();
  NSA_RETURN_IF_ERROR(CheckBranch(exec, kName, keys, args));
  exec.Enter(kName);
  if (exec.backend == Backend::kCuda) return cuda::CompressedAttention(exec, args);
  StoreKeysRead(args.keys_read, Attend(args, keys, RangesOf<kCmp>(args)).sum);
  return absl::OkStatus();
}

absl::Status CompressedAttentionBackward(const Exec& exec, const BranchBackwardArgs& args) {
  constexpr const char* kName = "compressed_attention_backward";
  NSA_RETURN_IF_ERROR(args.shape.Validate());
  const int32_t keys = args.shape.cmp_blocks();
  NSA_RETURN_IF_ERROR(CheckBranch(exec, kName, keys, args));
  exec.Enter(kName);
  if (exec.backend == Backend::kCuda) return cuda::CompressedAttentionBackward(exec, args);
  AttendBackward(args, keys, RangesOf<kCmp>(args));
  return absl::OkStatus();
}

}  // namespace nsa
