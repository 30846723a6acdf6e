#include "kernels/nsa/compressed_attention.h"

#include <algorithm>

#include "common/status.h"
#include "kernels/cuda/kernels.h"
#include "kernels/nsa/attend.h"
#include "kernels/nsa/key_ranges.h"

namespace nsa {

absl::Status CompressedAttention(const Exec& exec, const CompressedAttentionArgs& args) {
  const NsaShape& shape = args.shape;
  BranchTensors tensors = TensorsOf(args);
  tensors.keys_read = args.keys_read;
  NSA_RETURN_IF_ERROR(shape.Validate());
  NSA_RETURN_IF_ERROR(
      CheckForward(exec, "compressed_attention", shape, shape.cmp_blocks(), tensors));
  exec.Enter("compressed_attention");
  if (exec.backend == Backend::kCuda) return cuda::CompressedAttention(exec, args);
  const KeyCounts counts =
      Attend(CoreOf(args, shape.cmp_blocks()),
             [&](int32_t b, int32_t, int32_t t, std::vector<KeyRange>* ranges) {
               PushRange(VisibleBlocks(shape, t, DocStart(args.doc_start, shape, b, t)), ranges);
             });
  StoreKeysRead(args.keys_read, counts.sum);
  return absl::OkStatus();
}

absl::Status CompressedAttentionBackward(const Exec& exec,
                                         const CompressedAttentionBackwardArgs& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(shape.Validate());
  NSA_RETURN_IF_ERROR(CheckBackward(exec, "compressed_attention_backward", shape,
                                    shape.cmp_blocks(), TensorsOf(args), GradientsOf(args)));
  exec.Enter("compressed_attention_backward");
  if (exec.backend == Backend::kCuda) return cuda::CompressedAttentionBackward(exec, args);
  AttendBackward(BackwardCoreOf(args, shape.cmp_blocks()), [&](int32_t b, int32_t, int32_t t,
                                                               std::vector<KeyRange>* ranges) {
    PushRange(VisibleBlocks(shape, t, DocStart(args.doc_start, shape, b, t)), ranges);
  });
  return absl::OkStatus();
}

int64_t CompressedKeysExpected(const NsaShape& shape, std::span<const int32_t> doc_start) {
  return SumOverTokens(shape, doc_start, [&](int32_t t, int32_t first) {
    const KeyRange range = VisibleBlocks(shape, t, first);
    return std::max(0, range.end - range.begin);
  });
}

}  // namespace nsa
