#include "kernels/nn/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/vector_exp.h"

namespace nsa {
namespace {

absl::Status Check(const Exec& exec, const CrossEntropyArgs& args) {
  const DType type = ActivationType(exec);
  constexpr char kName[] = "cross_entropy";
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", args.rows, 0));
  NSA_RETURN_IF_ERROR(CheckAtLeast("vocab", args.vocab, 1));
  NSA_RETURN_IF_ERROR(CheckAtLeast("columns", args.stride(), args.vocab));
  NSA_RETURN_IF_ERROR(
      CheckTensor("logits", args.logits, args.rows * args.stride(), type, "rows·columns"));
  NSA_RETURN_IF_ERROR(CheckTensor("targets", args.targets, args.rows, DType::kI32, "rows"));
  NSA_RETURN_IF_ERROR(CheckTensor("row_loss", args.row_loss, args.rows, DType::kF32, "rows"));
  if (args.mean_loss.wanted()) {
    NSA_RETURN_IF_ERROR(CheckTensor("mean_loss", args.mean_loss, 1, DType::kF32, "1"));
  }
  if (args.dlogits.wanted()) {
    NSA_RETURN_IF_ERROR(
        CheckTensor("dlogits", args.dlogits, args.rows * args.stride(), type, "rows·columns"));
  }
  if (exec.backend == Backend::kCuda) return absl::OkStatus();  // the loader has checked
  for (const int32_t target : args.targets.as<int32_t>()) {
    if (target < args.vocab) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(kName, ": target: ", target, " (at most ", args.vocab - 1,
                     "); check that the data was made with the job's tokenizer"));
  }
  return absl::OkStatus();
}

struct SoftmaxSum {
  float max;
  double sum;  // Σ exp(logit − max)
  double lse;  // log Σ exp(logit)
};

SoftmaxSum SumOfExponentials(const float* logits, int64_t vocab) {
  float max = logits[0];
#pragma omp simd reduction(max : max)
  for (int64_t v = 0; v < vocab; ++v) max = logits[v] > max ? logits[v] : max;
  // fp32 within chunks, fp64 across chunks, so that precision holds with a vocabulary of 50,000.
  constexpr int64_t kChunk = 1024;
  double sum = 0;
  for (int64_t begin = 0; begin < vocab; begin += kChunk) {
    const int64_t end = begin + kChunk < vocab ? begin + kChunk : vocab;
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t v = begin; v < end; ++v) part += VectorExp(logits[v] - max);
    sum += part;
  }
  return {max, sum, std::log(sum) + max};
}

// The gradient of a row's logits.
void GradientRow(const CrossEntropyArgs& args, const float* logits, int32_t target,
                 const SoftmaxSum& softmax, float* dlogits) {
  const float over_sum = static_cast<float>(args.gradient_scale / softmax.sum);
#pragma omp simd
  for (int64_t v = 0; v < args.vocab; ++v) {
    dlogits[v] = VectorExp(logits[v] - softmax.max) * over_sum;
  }
  dlogits[target] -= args.gradient_scale;
}

void OneRow(const CrossEntropyArgs& args, int64_t r) {
  const int32_t target = args.targets.as<int32_t>()[r];
  float& row_loss = args.row_loss.as<float>()[r];
  const float* const logits = args.logits.as<float>().data() + r * args.stride();
  float* dlogits =
      args.dlogits.wanted() ? args.dlogits.as<float>().data() + r * args.stride() : nullptr;
  if (target < 0) {
    row_loss = 0;
    if (dlogits != nullptr) std::fill_n(dlogits, args.stride(), 0.0f);
    return;
  }
  if (dlogits != nullptr) std::fill(dlogits + args.vocab, dlogits + args.stride(), 0.0f);
  const SoftmaxSum softmax = SumOfExponentials(logits, args.vocab);
  row_loss = static_cast<float>(softmax.lse - logits[target]);
  if (dlogits != nullptr) GradientRow(args, logits, target, softmax, dlogits);
}

}  // namespace

absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("cross_entropy");
  if (exec.backend == Backend::kCuda) {
    NSA_RETURN_IF_ERROR(cuda::CrossEntropy(exec, args));
  } else {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < args.rows; ++r) OneRow(args, r);
  }
  if (!args.mean_loss.wanted()) return absl::OkStatus();
  return MeanRowLoss(exec, {.rows = args.rows,
                            .targets = args.targets,
                            .row_loss = args.row_loss,
                            .mean_loss = args.mean_loss});
}

absl::Status MeanRowLoss(const Exec& exec, const MeanRowLossArgs& args) {
  NSA_RETURN_IF_ERROR(CheckTensor("targets", args.targets, args.rows, DType::kI32, "rows"));
  NSA_RETURN_IF_ERROR(CheckTensor("row_loss", args.row_loss, args.rows, DType::kF32, "rows"));
  NSA_RETURN_IF_ERROR(CheckTensor("mean_loss", args.mean_loss, 1, DType::kF32, "1"));
  exec.Enter("cross_entropy");
  if (exec.backend == Backend::kCuda) return cuda::MeanRowLoss(exec, args);
  const auto targets = args.targets.as<int32_t>();
  const auto row_loss = args.row_loss.as<float>();
  double sum = 0;
  int64_t predicted = 0;
  for (int64_t r = 0; r < args.rows; ++r) {
    sum += row_loss[r];
    predicted += targets[r] >= 0 ? 1 : 0;
  }
  args.mean_loss.as<float>()[0] =
      predicted == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(predicted));
  return absl::OkStatus();
}

}  // namespace nsa
