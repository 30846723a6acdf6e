#include "worker/train/decode/decoder.h"

#include "common/base/status.h"
#include "worker/train/decode/cpu_decoder.h"
#include "worker/train/decode/gpu_decoder.h"

namespace nsa::train {

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const Exec& exec, const v1::JobSpec& spec,
                                                         const Arena* parameters,
                                                         const DecoderOptions& options) {
  if (exec.backend == Backend::kCuda) {
    return GpuDecoder::Create(exec, spec, parameters, options);
  }
  return CpuDecoder::Create(exec, spec, parameters, options);
}

}  // namespace nsa::train
