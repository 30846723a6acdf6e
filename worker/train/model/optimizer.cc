#include "worker/train/model/optimizer.h"

#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "kernels/optimizer/global_norm.h"

namespace nsa::train {
namespace {

double Beta(const v1::TrainSpec& train, int index, double otherwise) {
  return index < train.betas_size() ? train.betas(index) : otherwise;
}

}  // namespace

Optimizer::Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout)
    : Optimizer(train, layout, Arena(layout), Arena(layout)) {}

// A gap between tensors belongs to the segment before it; its elements are and stay 0.
Optimizer::Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout, Arena m, Arena v)
    : train_(train), m_(std::move(m)), v_(std::move(v)) {
  int64_t covered = 0;
  for (const ParameterInfo& tensor : layout->tensors()) {
    if (!segments_.empty()) segments_.back().size += tensor.offset - covered;
    if (!segments_.empty() && segments_.back().decay == tensor.decay) {
      segments_.back().size += tensor.size;
    } else {
      segments_.push_back({.size = tensor.size, .decay = tensor.decay});
    }
    covered = tensor.offset + tensor.size;
  }
  segments_.back().size += layout->size() - covered;
}

absl::StatusOr<Optimizer> Optimizer::Create(const v1::TrainSpec& train,
                                            const ParameterLayout* layout, Backend backend) {
  NSA_ASSIGN_OR_RETURN(Arena m, Arena::Create(layout, {.backend = backend}, "AdamW moments"));
  NSA_ASSIGN_OR_RETURN(Arena v, Arena::Create(layout, {.backend = backend}, "AdamW moments"));
  return Optimizer(train, layout, std::move(m), std::move(v));
}

absl::StatusOr<double> Optimizer::GlobalNorm(const Exec& exec, const Arena& gradients) const {
  float norm = 0;
  NSA_RETURN_IF_ERROR(
      nsa::GlobalNorm(exec, {.values = gradients.flat(), .norm = std::span<float>(&norm, 1)}));
  return norm;
}

AdamWArgs Optimizer::Arguments(const Arena& gradients, Arena* parameters) {
  return {.parameters = parameters->flat(),
          .gradients = gradients.flat(),
          .m = m_.flat(),
          .v = v_.flat(),
          .segments = segments_,
          .beta1 = static_cast<float>(Beta(train_, 0, 0.9)),
          .beta2 = static_cast<float>(Beta(train_, 1, 0.95)),
          .weight_decay = static_cast<float>(train_.weight_decay()),
          .half = parameters->half()};
}

absl::Status Optimizer::Update(const Exec& exec, int64_t step, double learning_rate,
                               double grad_norm, const Arena& gradients, Arena* parameters) {
  const double clip = train_.grad_clip();
  const double scale = clip > 0 && grad_norm > clip ? clip / grad_norm : 1.0;
  AdamWArgs args = Arguments(gradients, parameters);
  args.k = step;
  args.lr = static_cast<float>(learning_rate);
  args.gradient_scale = static_cast<float>(scale);
  return AdamW(exec, args);
}

absl::Status Optimizer::Enqueue(const Exec& exec, const ConstTensor& device_step,
                                const Arena& gradients, Arena* parameters) {
  AdamWArgs args = Arguments(gradients, parameters);
  args.device_step = device_step;
  return AdamW(exec, args);
}

AdamWStep Optimizer::StepAt(int64_t step, double learning_rate) const {
  AdamWArgs args;
  args.k = step;
  args.lr = static_cast<float>(learning_rate);
  args.beta1 = static_cast<float>(Beta(train_, 0, 0.9));
  args.beta2 = static_cast<float>(Beta(train_, 1, 0.95));
  return StepOf(args);
}

}  // namespace nsa::train
