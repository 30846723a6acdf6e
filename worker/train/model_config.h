// What a model is, from its job: the one place where the trainer reads spec.model and spec.nsa.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/nsa/attention.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct ModelConfig {
  AttentionConfig attention;  // its shape's batch and seq_len are one rank's micro-batch
  int32_t dim = 0;            // D
  int32_t n_layers = 0;
  int32_t hidden = 0;  // of the MLP
  int32_t vocab = 0;   // V
  bool gradient_checkpointing = false;
};

// Expects a spec with its defaults (common/load.h).
ModelConfig ModelConfigOf(const v1::JobSpec& spec);

// "cmp".
const char* BranchName(Branch branch);

}  // namespace nsa
