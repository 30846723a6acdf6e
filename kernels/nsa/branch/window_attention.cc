#include "kernels/nsa/branch/window_attention.h"

#include "common/base/status.h"
#include "kernels/nsa/branch/attend.h"

namespace nsa {

absl::Status WindowAttention(const Exec& exec, const BranchArgs& args) {
  constexpr const char* kName = "window_attention";
  NSA_RETURN_IF_ERROR(args.shape.Validate());
  const int32_t keys = args.shape.seq_len;
  NSA_RETURN_IF_ERROR(CheckBranch(exec, kName, keys, args));
  exec.Enter(kName);
  if (exec.backend == Backend::kCuda) return cuda::WindowAttention(exec, args);
  StoreKeysRead(args.keys_read, Attend(args, keys, RangesOf<kWin>(args)).sum);
  return absl::OkStatus();
}

absl::Status WindowAttentionBackward(const Exec& exec, const BranchBackwardArgs& args) {
  constexpr const char* kName = "window_attention_backward";
  NSA_RETURN_IF_ERROR(args.shape.Validate());
  const int32_t keys = args.shape.seq_len;
  NSA_RETURN_IF_ERROR(CheckBranch(exec, kName, keys, args));
  exec.Enter(kName);
  if (exec.backend == Backend::kCuda) return cuda::WindowAttentionBackward(exec, args);
  AttendBackward(args, keys, RangesOf<kWin>(args));
  return absl::OkStatus();
}

}  // namespace nsa
