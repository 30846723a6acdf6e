#include "common/estimate/shares.h"

namespace nsa {

bool ShardsOptimizer(const v1::JobSpec& spec, int32_t ranks) {
  return ranks > 1 && spec.runtime().shard_optimizer();
}

bool SendsBf16Gradients(const v1::JobSpec& spec, int32_t ranks) {
  return ranks > 1 && spec.runtime().gradient_precision() == v1::PRECISION_BF16;
}

}  // namespace nsa
