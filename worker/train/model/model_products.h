// Lists every matrix product of a model's step, so that cuBLASLt's algorithms can be chosen before
// memory is allocated (cuda::Blas::Plan).
#pragma once

#include <vector>

#include "kernels/nn/matmul.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {

// Shapes, transpositions and types, without memory. `config` has the shape of one rank's
// micro-batch.
std::vector<MatmulArgs> ProductsOf(const ModelConfig& config);

}  // namespace nsa::train
