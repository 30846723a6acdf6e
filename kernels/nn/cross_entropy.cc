#include "kernels/nn/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/vector_exp.h"

namespace nsa {
namespace {

absl::Status CheckWeight(const char* name, float weight) {
  if (weight >= 0 && std::isfinite(weight)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cross_entropy: ", name, ": ", weight, " (at least 0, finite); take 0"));
}

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
  NSA_RETURN_IF_ERROR(CheckWeight("softcap", args.softcap));
  NSA_RETURN_IF_ERROR(CheckWeight("z_loss", args.z_loss));
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

// The gradient of a row's logits as they are in the softmax.
void GradientRow(const CrossEntropyArgs& args, const float* y, int32_t target,
                 const SoftmaxSum& softmax, float* dy) {
  const double slope = args.gradient_scale * (1 + 2.0 * args.z_loss * softmax.lse);
  const float over_sum = static_cast<float>(slope / softmax.sum);
#pragma omp simd
  for (int64_t v = 0; v < args.vocab; ++v) dy[v] = VectorExp(y[v] - softmax.max) * over_sum;
  dy[target] -= args.gradient_scale;
}

// Through y = c · tanh(x / c): dx = dy · (1 − (y / c)²).
void SoftCapBackward(const float* y, int64_t vocab, float cap, float* d) {
#pragma omp simd
  for (int64_t v = 0; v < vocab; ++v) {
    const float tanh = y[v] / cap;
    d[v] *= 1 - tanh * tanh;
  }
}

// Row r. `capped`, [vocab] with a softcap, is scratch memory.
void OneRow(const CrossEntropyArgs& args, int64_t r, std::span<float> capped) {
  const int32_t target = args.targets.as<int32_t>()[r];
  float& row_loss = args.row_loss.as<float>()[r];
  const float* y = args.logits.as<float>().data() + r * args.stride();
  float* dlogits =
      args.dlogits.wanted() ? args.dlogits.as<float>().data() + r * args.stride() : nullptr;
  if (target < 0) {
    row_loss = 0;
    if (dlogits != nullptr) std::fill_n(dlogits, args.stride(), 0.0f);
    return;
  }
  if (dlogits != nullptr) std::fill(dlogits + args.vocab, dlogits + args.stride(), 0.0f);
  if (args.softcap > 0) {
    std::copy_n(y, args.vocab, capped.begin());
    SoftCap(args.softcap, capped);
    y = capped.data();
  }
  const SoftmaxSum softmax = SumOfExponentials(y, args.vocab);
  row_loss = static_cast<float>(softmax.lse - y[target]);
  if (dlogits == nullptr) return;
  GradientRow(args, y, target, softmax, dlogits);
  if (args.softcap > 0) SoftCapBackward(y, args.vocab, args.softcap, dlogits);
}

}  // namespace

void SoftCap(float cap, std::span<float> logits) {
  if (cap <= 0) return;
  float* const x = logits.data();
  const size_t size = logits.size();
#pragma omp simd
  for (size_t i = 0; i < size; ++i) x[i] = cap * VectorTanh(x[i] / cap);
}

absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("cross_entropy");
  if (exec.backend == Backend::kCuda) {
    NSA_RETURN_IF_ERROR(cuda::CrossEntropy(exec, args));
  } else {
#pragma omp parallel
    {
      std::vector<float> capped(args.softcap > 0 ? args.vocab : 0);
#pragma omp for schedule(static)
      for (int64_t r = 0; r < args.rows; ++r) OneRow(args, r, capped);
    }
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
