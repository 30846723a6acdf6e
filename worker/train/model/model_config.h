// A model's configuration, read from its job. This is the only place where the trainer reads
// spec.model and spec.nsa.
#pragma once

#include <array>
#include <cstdint>

#include "common/estimate/estimate.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct ModelConfig {
  NsaLayerConfig attention;  // batch and seq_len of its shape: one rank's micro-batch
  int32_t dim = 0;           // D
  int32_t n_layers = 0;
  int32_t hidden = 0;  // of the MLP
  int32_t vocab = 0;   // V
  Recompute recompute = Recompute::kNothing;
};

// `spec` must have its defaults filled in (common/job/load.h).
ModelConfig ModelConfigOf(const v1::JobSpec& spec);

}  // namespace nsa
