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

// Runs of neighbouring elements that are updated alike. Elements that are not updated are in no
// run: the updated ones are numbered without gaps, and each run knows how many others are in front
// of it. A launch handles as many runs as fit in its parameters.
constexpr int kMaxRuns = 160;
struct Runs {
  int64_t end[kMaxRuns];     // number of the first element behind the run
  int64_t others[kMaxRuns];  // added to a number, this gives the place in the arrays
  bool decays[kMaxRuns];
  int count;
  bool aligned;  // whether the places of four elements that a thread handles follow each other
};

struct Pointers {
  float *parameters, *m, *v;
  const float* gradients;
  bf16* half;
  const float* scalars;
  bool aligned;  // all arrays, to what a thread reads at a time
};

// The run that element i is in.
__device__ __forceinline__ int RunOf(const Runs& runs, int64_t i) {
  int low = 0, high = runs.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (i < runs.end[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

struct Hyper {
  float beta1, beta2, eps, weight_decay;
};

// Updates one element.
__device__ __forceinline__ void Update(const AdamWStep& step, const Hyper& h, float gradient,
                                       bool decays, float& parameter, float& m, float& v) {
  const float g = gradient * step.gradient_scale;
  m = h.beta1 * m + (1 - h.beta1) * g;
  v = h.beta2 * v + (1 - h.beta2) * g * g;
  const float update = (m * step.inverse_bias1) / (sqrtf(v * step.inverse_bias2) + h.eps) +
                       (decays ? h.weight_decay * parameter : 0.0f);
  parameter = parameter - step.lr * update;
}

// Elements of a thread; read and written together.
constexpr int kOwn = 4;

__global__ void AdamWKernel(Begin start, Pointers p, const __grid_constant__ Runs runs,
                            int64_t begin, int64_t end, AdamWStep host, Hyper hyper) {
  start.WaitForPrevious();
  const int64_t first = begin + kOwn * (int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x);
  if (first >= end) return;
  const AdamWStep step =
      p.scalars == nullptr ? host : *reinterpret_cast<const AdamWStep*>(p.scalars);
  if (step.skip != 0) return;
  int run = RunOf(runs, first);
  if (!p.aligned || !runs.aligned || first + kOwn > end) {
    for (int64_t i = first; i < min(first + kOwn, end); ++i) {
      while (i >= runs.end[run]) ++run;
      const int64_t at = i + runs.others[run];
      Update(step, hyper, p.gradients[at], runs.decays[run], p.parameters[at], p.m[at], p.v[at]);
      if (p.half != nullptr) p.half[at] = __float2bfloat16(p.parameters[at]);
    }
    return;
  }
  const int64_t at = (first + runs.others[run]) / kOwn;
  const bool decays = runs.decays[run];
  const float4 g = reinterpret_cast<const float4*>(p.gradients)[at];
  float4 m = reinterpret_cast<float4*>(p.m)[at], v = reinterpret_cast<float4*>(p.v)[at];
  float4 x = reinterpret_cast<float4*>(p.parameters)[at];
  Update(step, hyper, g.x, decays, x.x, m.x, v.x);
  Update(step, hyper, g.y, decays, x.y, m.y, v.y);
  Update(step, hyper, g.z, decays, x.z, m.z, v.z);
  Update(step, hyper, g.w, decays, x.w, m.w, v.w);
  reinterpret_cast<float4*>(p.m)[at] = m;
  reinterpret_cast<float4*>(p.v)[at] = v;
  reinterpret_cast<float4*>(p.parameters)[at] = x;
  if (p.half != nullptr) reinterpret_cast<uint2*>(p.half)[at] = {Pack(x.x, x.y), Pack(x.z, x.w)};
}

bool AllAligned(const AdamWArgs& args) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(args.half.data) * 2;
  for (const void* data :
       {static_cast<const void*>(args.parameters.data), args.gradients.data,
        static_cast<const void*>(args.m.data), static_cast<const void*>(args.v.data)}) {
    bits |= reinterpret_cast<uintptr_t>(data);
  }
  return bits % (kOwn * sizeof(float)) == 0;
}

}  // namespace

absl::Status AdamW(const Exec& exec, const AdamWArgs& args) {
  const Pointers p{DataOf<float>(args.parameters),
                   DataOf<float>(args.m),
                   DataOf<float>(args.v),
                   DataOf<float>(args.gradients),
                   DataOf<bf16>(args.half),
                   DataOf<float>(args.device_step),
                   AllAligned(args)};
  const AdamWStep host = StepOf(args);
  const Hyper hyper{args.beta1, args.beta2, args.eps, args.weight_decay};
  int64_t begin = 0, place = 0;  // number of the next updated element, place of the next segment
  Runs runs{};
  int64_t end = begin;
  const auto launch = [&]() -> absl::Status {
    if (end == begin) return absl::OkStatus();
    NSA_RETURN_IF_ERROR(Launch(exec, "adamw", AdamWKernel,
                               {.grid = GridFor(end - begin, kOwn * 256), .block = 256}, p, runs,
                               begin, end, host, hyper));
    begin = end;
    runs.count = 0;
    return absl::OkStatus();
  };
  for (const AdamWSegment& segment : args.segments) {
    const int64_t others = place - end;
    place += segment.size;
    if (!segment.update || segment.size == 0) continue;
    const int last = runs.count - 1;
    const bool same =
        runs.count > 0 && runs.others[last] == others && runs.decays[last] == segment.decay;
    if (!same) {
      if (runs.count == kMaxRuns) NSA_RETURN_IF_ERROR(launch());
      runs.aligned = (runs.count == 0 || runs.aligned) && end % kOwn == 0 && others % kOwn == 0;
      runs.others[runs.count] = others;
      runs.decays[runs.count++] = segment.decay;
    }
    end += segment.size;
    runs.end[runs.count - 1] = end;
  }
  return launch();
}

}  // namespace nsa::cuda
