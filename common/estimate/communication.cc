#include "common/estimate/communication.h"

#include <algorithm>

#include "common/estimate/estimate.h"
#include "common/estimate/passes.h"
#include "common/estimate/shares.h"

namespace nsa {

int64_t GradientBytes(const v1::JobSpec& spec) {
  const int32_t ranks = RanksOf(spec);
  const int64_t bytes = ParameterCount(spec) * (SendsBf16Gradients(spec, ranks) ? 2 : 4);
  if (ShardsParameters(spec, ranks)) {
    const int64_t weights =
        ParameterCount(spec) * (spec.runtime().device() == v1::DEVICE_CPU ? 4 : 2);
    return PassesOf(spec).count * (bytes + 2 * weights) / 2;
  }
  return ShardsGradients(spec, ranks) ? bytes * (PassesOf(spec).count + 1) / 2 : bytes;
}

double StepSeconds::Overlapped() const { return std::max(computing, communicating); }

double SumSeconds(int64_t bytes, int32_t ranks, double bytes_per_second) {
  const double n = std::max(ranks, 1);
  return 2 * (n - 1) / n * static_cast<double>(bytes) / bytes_per_second;
}

}  // namespace nsa
