#include "common/estimate/shares.h"

#include "common/estimate/optimizer_traits.h"
#include "common/estimate/passes.h"

namespace nsa {

bool ShardsOptimizer(const v1::JobSpec& spec, int32_t ranks) {
  return ranks > 1 && spec.runtime().shard_optimizer();
}

bool DefaultShards(const v1::JobSpec& spec) {
  return TraitsOf(spec.train()).whole_matrices && spec.resources().gpus() > 1 &&
         spec.resources().nodes() <= 1 && ContextOf(spec) == 1;
}

bool SendsBf16Gradients(const v1::JobSpec& spec, int32_t ranks) {
  return ranks > 1 && spec.runtime().gradient_precision() == v1::PRECISION_BF16;
}

}  // namespace nsa
