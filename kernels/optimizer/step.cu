// Each of these kernels has one thread; its cost is that of a launch.
#include "kernels/cuda/launch.h"
#include "kernels/optimizer/step.h"

namespace nsa::cuda {
namespace {

__global__ void MeanLossKernel(MeanLossArgs args) {
  float sum = 0;
  for (int i = 0; i < args.count; ++i) sum += args.losses[i * args.stride] * args.scale;
  *args.mean = sum;
}

__global__ void DecideUpdateKernel(DecideUpdateArgs args) {
  const StepInput input = *args.input;
  const float norm = args.output->norm, loss = *args.loss;
  AdamWStep update;
  update.lr = input.lr;
  update.inverse_bias1 = input.inverse_bias1;
  update.inverse_bias2 = input.inverse_bias2;
  update.gradient_scale = input.clip > 0 && norm > input.clip ? input.clip / norm : 1.0f;
  update.skip = isfinite(norm) && isfinite(loss) ? 0.0f : 1.0f;
  args.output->update = update;
  args.output->loss = loss;
}

__global__ void MarkKernel(volatile int32_t* mark, int32_t value, volatile int64_t* nanos) {
  if (nanos != nullptr) {
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    *nanos = now;
  }
  *mark = value;
  __threadfence_system();
}

__global__ void SpinKernel(const volatile int32_t* stop) {
  while (*stop == 0) {
  }
}

}  // namespace

absl::Status MeanLoss(const Exec& exec, const MeanLossArgs& args) {
  MeanLossKernel<<<1, 1, 0, StreamOf(exec)>>>(args);
  return CheckLaunch("mean_loss");
}

absl::Status DecideUpdate(const Exec& exec, const DecideUpdateArgs& args) {
  DecideUpdateKernel<<<1, 1, 0, StreamOf(exec)>>>(args);
  return CheckLaunch("decide_update");
}

absl::Status Mark(const Exec& exec, int32_t* mark, int32_t value, int64_t* nanos) {
  MarkKernel<<<1, 1, 0, StreamOf(exec)>>>(mark, value, nanos);
  return CheckLaunch("mark");
}

absl::Status Spin(const Exec& exec, const int32_t* stop) {
  SpinKernel<<<1, 1, 0, StreamOf(exec)>>>(stop);
  return CheckLaunch("spin");
}

}  // namespace nsa::cuda
