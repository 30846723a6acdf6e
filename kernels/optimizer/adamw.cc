#include "kernels/optimizer/adamw.h"

#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

absl::Status Check(const AdamWArgs& args) {
  const int64_t size = args.parameters.size;
  NSA_RETURN_IF_ERROR(CheckTensor("parameters", args.parameters, size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("gradients", args.gradients, size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("m", args.m, size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("v", args.v, size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckAtLeast("k", args.k, 1));
  int64_t covered = 0;
  for (const AdamWSegment& segment : args.segments) covered += segment.size;
  if (covered == size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("adamw: segments: they cover ", covered,
                                                 " elements (expected ", size,
                                                 "); list every tensor once"));
}

// The constants of one update, rounded once.
struct Update {
  AdamWStep step;
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float eps;
};

void UpdateSegment(const Update& u, float decay, int64_t size, const float* gradients,
                   float* parameters, float* m, float* v) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < size; ++i) {
    const float g = gradients[i] * u.step.gradient_scale;
    const float mean = u.beta1 * m[i] + u.one_minus_beta1 * g;
    const float square = u.beta2 * v[i] + u.one_minus_beta2 * g * g;
    m[i] = mean;
    v[i] = square;
    const float step =
        mean * u.step.inverse_bias1 / (std::sqrt(square * u.step.inverse_bias2) + u.eps);
    parameters[i] -= u.step.lr * (step + decay * parameters[i]);
  }
}

}  // namespace

AdamWStep StepOf(const AdamWArgs& args) {
  const double k = static_cast<double>(args.k);
  return {.lr = args.lr,
          .gradient_scale = args.gradient_scale,
          .inverse_bias1 =
              static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(args.beta1), k))),
          .inverse_bias2 =
              static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(args.beta2), k)))};
}

absl::Status AdamW(const Exec& exec, const AdamWArgs& args) {
  NSA_RETURN_IF_ERROR(Check(args));
  exec.Enter("adamw");
  if (exec.backend == Backend::kCuda) return cuda::AdamW(exec, args);
  const Update update = {
      .step = StepOf(args),
      .beta1 = args.beta1,
      .one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(args.beta1)),
      .beta2 = args.beta2,
      .one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(args.beta2)),
      .eps = args.eps};
  int64_t begin = 0;
  for (const AdamWSegment& segment : args.segments) {
    const int64_t at = std::exchange(begin, begin + segment.size);
    if (!segment.update) continue;
    UpdateSegment(update, segment.decay ? args.weight_decay : 0.0f, segment.size,
                  args.gradients.as<float>().data() + at, args.parameters.as<float>().data() + at,
                  args.m.as<float>().data() + at, args.v.as<float>().data() + at);
  }
  return absl::OkStatus();
}

}  // namespace nsa
