// Each of these kernels has one thread; its cost is that of a launch.
#include "kernels/cuda/launch.h"
#include "kernels/optimizer/step.h"

namespace nsa::cuda {
namespace {

__global__ void MeanLossKernel(Begin begin, MeanLossArgs args) {
  begin.WaitForPrevious();
  float sum = 0;
  for (int i = 0; i < args.count; ++i) {
    const float scale = args.weights == nullptr ? args.scale : args.scale * args.weights[i];
    sum += args.losses[i * args.stride] * scale;
  }
  *args.mean = sum;
}

__global__ void DecideUpdateKernel(Begin begin, DecideUpdateArgs args) {
  begin.WaitForPrevious();
  const StepInput input = *args.input;
  const float norm = args.output->norm * input.weight, loss = *args.loss;
  AdamWStep update;
  update.lr = input.lr;
  update.inverse_bias1 = input.inverse_bias1;
  update.inverse_bias2 = input.inverse_bias2;
  update.gradient_scale = input.weight;
  if (input.clip > 0 && norm > input.clip) update.gradient_scale *= input.clip / norm;
  update.skip = isfinite(norm) && isfinite(loss) ? 0.0f : 1.0f;
  args.output->update = update;
  args.output->loss = loss;
  args.output->norm = norm;
}

__global__ void MarkKernel(Begin begin) { begin.WaitForPrevious(); }

__global__ void SpinKernel(Begin begin, const volatile int32_t* stop) {
  begin.WaitForPrevious();
  while (*stop == 0) {
  }
}

}  // namespace

absl::Status MeanLoss(const Exec& exec, const MeanLossArgs& args) {
  return Launch(exec, "mean_loss", MeanLossKernel, {}, args);
}

absl::Status DecideUpdate(const Exec& exec, const DecideUpdateArgs& args) {
  return Launch(exec, "decide_update", DecideUpdateKernel, {}, args);
}

absl::Status Mark(const Exec& exec, PendingMark mark) {
  Exec marked = exec;
  marked.mark = &mark;
  return Launch(marked, "mark", MarkKernel, {});
}

absl::Status Spin(const Exec& exec, const int32_t* stop) {
  return Launch(exec, "spin", SpinKernel, {}, stop);
}

}  // namespace nsa::cuda
