// AdamW on CUDA, fused: reads parameter, gradient and both moments, writes parameter, moments and
// the bf16 copy that the matrix products read. Limited by memory bandwidth: 30 bytes per element.
// The values that change from step to step are read from device memory, so that a CUDA graph can
// contain the launch.
#include <cmath>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/util.cuh"
#include "kernels/optimizer/adamw.h"

namespace nsa::cuda {
namespace {

// Runs of elements that alternate between decay and no decay. A launch handles as many runs as fit
// in its parameters.
constexpr int kMaxRuns = 256;
struct Runs {
  int64_t end[kMaxRuns];
  int count;
  bool first_decays;
};

struct Pointers {
  float *parameters, *m, *v;
  const float* gradients;
  bf16* half;
  const float* scalars;
};

__device__ __forceinline__ bool Decays(const Runs& runs, int64_t i) {
  int low = 0, high = runs.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (i < runs.end[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return ((low & 1) == 0) == runs.first_decays;
}

__global__ void AdamWKernel(Pointers p, const __grid_constant__ Runs runs, int64_t begin,
                            int64_t end, AdamWStep host, float beta1, float beta2, float eps,
                            float weight_decay) {
  const int64_t i = begin + int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= end) return;
  const AdamWStep step =
      p.scalars == nullptr ? host : *reinterpret_cast<const AdamWStep*>(p.scalars);
  if (step.skip != 0) return;
  const float g = p.gradients[i] * step.gradient_scale;
  const float m = beta1 * p.m[i] + (1 - beta1) * g;
  const float v = beta2 * p.v[i] + (1 - beta2) * g * g;
  const float old = p.parameters[i];
  const float update = (m * step.inverse_bias1) / (sqrtf(v * step.inverse_bias2) + eps) +
                       (Decays(runs, i) ? weight_decay * old : 0.0f);
  const float parameter = old - step.lr * update;
  p.m[i] = m;
  p.v[i] = v;
  p.parameters[i] = parameter;
  if (p.half != nullptr) p.half[i] = __float2bfloat16(parameter);
}

}  // namespace

absl::Status AdamW(const Exec& exec, const AdamWArgs& args) {
  const Pointers p{DataOf<float>(args.parameters), DataOf<float>(args.m),
                   DataOf<float>(args.v),          DataOf<float>(args.gradients),
                   DataOf<bf16>(args.half),        DataOf<float>(args.device_step)};
  const AdamWStep host = StepOf(args);
  size_t segment = 0;
  int64_t begin = 0;
  while (segment < args.segments.size()) {
    Runs runs{};
    runs.first_decays = args.segments[segment].decay;
    int64_t end = begin;
    bool decays = runs.first_decays;
    while (segment < args.segments.size()) {
      const bool next = args.segments[segment].decay;
      if (next != decays || runs.count == 0) {
        if (runs.count == kMaxRuns) break;
        ++runs.count;
        decays = next;
      }
      end += args.segments[segment++].size;
      runs.end[runs.count - 1] = end;
    }
    if (end == begin) continue;
    AdamWKernel<<<GridFor(end - begin, 256), 256, 0, StreamOf(exec)>>>(
        p, runs, begin, end, host, args.beta1, args.beta2, args.eps, args.weight_decay);
    NSA_RETURN_IF_ERROR(CheckLaunch("adamw"));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace nsa::cuda
