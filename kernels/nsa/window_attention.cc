#include "kernels/nsa/window_attention.h"

#include "common/status.h"
#include "kernels/cuda/kernels.h"
#include "kernels/nsa/attend.h"
#include "kernels/nsa/key_ranges.h"

namespace nsa {

absl::Status WindowAttention(const Exec& exec, const WindowAttentionArgs& args) {
  const NsaShape& shape = args.shape;
  BranchTensors tensors = TensorsOf(args);
  tensors.keys_read = args.keys_read;
  NSA_RETURN_IF_ERROR(CheckForward(exec, "window_attention", shape, shape.seq_len, tensors));
  exec.Enter("window_attention");
  if (exec.backend == Backend::kCuda) return cuda::WindowAttention(exec, args);
  const KeyCounts counts = Attend(CoreOf(args, shape.seq_len), [&](int32_t b, int32_t, int32_t t,
                                                                   std::vector<KeyRange>* ranges) {
    PushRange(Window(shape, t, DocStart(args.doc_start, shape, b, t)), ranges);
  });
  StoreKeysRead(args.keys_read, counts.sum);
  return absl::OkStatus();
}

absl::Status WindowAttentionBackward(const Exec& exec, const WindowAttentionBackwardArgs& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(CheckBackward(exec, "window_attention_backward", shape, shape.seq_len,
                                    TensorsOf(args), GradientsOf(args)));
  exec.Enter("window_attention_backward");
  if (exec.backend == Backend::kCuda) return cuda::WindowAttentionBackward(exec, args);
  AttendBackward(BackwardCoreOf(args, shape.seq_len),
                 [&](int32_t b, int32_t, int32_t t, std::vector<KeyRange>* ranges) {
                   PushRange(Window(shape, t, DocStart(args.doc_start, shape, b, t)), ranges);
                 });
  return absl::OkStatus();
}

int64_t WindowKeysExpected(const NsaShape& shape, std::span<const int32_t> doc_start) {
  return SumOverTokens(shape, doc_start, [&](int32_t t, int32_t first) {
    return t + 1 - std::max(first, shape.window_start(t));
  });
}

}  // namespace nsa
