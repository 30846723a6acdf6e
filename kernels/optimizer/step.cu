// Each of these kernels has one thread; its cost is that of a launch.
#include "kernels/cuda/launch.h"
#include "kernels/optimizer/step.h"

namespace nsa::cuda {
namespace {

__global__ void MeanLossKernel(Begin begin, MeanLossArgs args) {
  begin.WaitForPrevious();
  float sum = 0;
  for (int i = 0; i < args.count; ++i) sum += args.losses[i * args.stride] * args.scale;
  *args.mean = sum;
}

__global__ void DecideUpdateKernel(Begin begin, DecideUpdateArgs args) {
  begin.WaitForPrevious();
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
