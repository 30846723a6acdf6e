// Lists every matrix product of a model's step, so that cuBLASLt's algorithms can be chosen before
// memory is allocated (cuda::Blas::Plan).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/nn/matmul.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {

// Shapes, transpositions and types, without memory. `config` is that of one rank: with
// context parallelism after DivideContext(). The first of a step's passes overwrites the gradients
// of weights, others add to them.
std::vector<MatmulArgs> ProductsOf(const ModelConfig& config, int32_t passes);

}  // namespace nsa::train
