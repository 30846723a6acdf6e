#include "worker/train/model/optimizer.h"

#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "kernels/optimizer/global_norm.h"

namespace nsa::train {
namespace {

float Beta(const google::protobuf::RepeatedField<double>& betas, int index, double otherwise) {
  return static_cast<float>(index < betas.size() ? betas[index] : otherwise);
}

// The matrices that Muon updates.
std::vector<MuonMatrix> MatricesOf(const v1::TrainSpec& train, const ParameterLayout& layout) {
  std::vector<MuonMatrix> matrices;
  if (train.optimizer() != v1::OPTIMIZER_MUON) return matrices;
  for (const ParameterInfo& tensor : layout.tensors()) {
    if (tensor.hidden) matrices.push_back({tensor.offset, tensor.shape[0], tensor.shape[1]});
  }
  return matrices;
}

// What the learning rate of Muon's matrices is multiplied with.
double MuonFactor(const v1::TrainSpec& train) {
  return train.has_muon_lr() ? train.muon_lr() / train.lr() : 1;
}

}  // namespace

Optimizer::Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout)
    : Optimizer(train, layout, Arena(layout), Arena(layout)) {}

// A gap between tensors belongs to the segment before it; its elements are and stay 0.
Optimizer::Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout, Arena m, Arena v)
    : train_(train), matrices_(MatricesOf(train, *layout)), m_(std::move(m)), v_(std::move(v)) {
  const bool muon = train.optimizer() == v1::OPTIMIZER_MUON;
  int64_t covered = 0;
  for (const ParameterInfo& tensor : layout->tensors()) {
    if (!segments_.empty()) segments_.back().size += tensor.offset - covered;
    const bool update = !(muon && tensor.hidden);
    if (!segments_.empty() && segments_.back().decay == tensor.decay &&
        segments_.back().update == update) {
      segments_.back().size += tensor.size;
    } else {
      segments_.push_back({.size = tensor.size, .decay = tensor.decay, .update = update});
    }
    covered = tensor.offset + tensor.size;
  }
  segments_.back().size += layout->size() - covered;
}

std::vector<MatmulArgs> Optimizer::Products(const v1::JobSpec& spec) {
  return MuonProducts(MatricesOf(spec.train(), ParameterLayout(spec)));
}

absl::StatusOr<Optimizer> Optimizer::Create(const v1::TrainSpec& train,
                                            const ParameterLayout* layout, Backend backend) {
  NSA_ASSIGN_OR_RETURN(Arena m, Arena::Create(layout, {.backend = backend}, "optimizer moments"));
  NSA_ASSIGN_OR_RETURN(Arena v, Arena::Create(layout, {.backend = backend}, "optimizer moments"));
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
          .beta1 = Beta(train_.betas(), 0, 0.9),
          .beta2 = Beta(train_.betas(), 1, 0.95),
          .weight_decay = static_cast<float>(train_.weight_decay()),
          .half = parameters->half()};
}

MuonArgs Optimizer::MuonArguments(const Arena& gradients, Arena* parameters) {
  return {.parameters = parameters->flat(),
          .gradients = gradients.flat(),
          .m = m_.flat(),
          .v = v_.flat(),
          .matrices = matrices_,
          .beta1 = Beta(train_.muon_betas(), 0, 0.95),
          .beta2 = Beta(train_.muon_betas(), 1, 0.95),
          .weight_decay = static_cast<float>(train_.weight_decay()),
          .half = parameters->half(),
          .lr_factor = static_cast<float>(MuonFactor(train_))};
}

absl::Status Optimizer::Update(const Exec& exec, int64_t step, double learning_rate,
                               double grad_norm, const Arena& gradients, Arena* parameters) {
  const double clip = train_.grad_clip();
  const double scale = clip > 0 && grad_norm > clip ? clip / grad_norm : 1.0;
  AdamWArgs args = Arguments(gradients, parameters);
  args.k = step;
  args.lr = static_cast<float>(learning_rate);
  args.gradient_scale = static_cast<float>(scale);
  NSA_RETURN_IF_ERROR(AdamW(exec, args));
  if (matrices_.empty()) return absl::OkStatus();
  MuonArgs muon = MuonArguments(gradients, parameters);
  muon.lr = static_cast<float>(learning_rate * MuonFactor(train_));
  muon.gradient_scale = args.gradient_scale;
  return Muon(exec, muon);
}

absl::Status Optimizer::Enqueue(const Exec& exec, const ConstTensor& device_step,
                                const Arena& gradients, Arena* parameters) {
  AdamWArgs args = Arguments(gradients, parameters);
  args.device_step = device_step;
  NSA_RETURN_IF_ERROR(AdamW(exec, args));
  if (matrices_.empty()) return absl::OkStatus();
  MuonArgs muon = MuonArguments(gradients, parameters);
  muon.device_step = device_step;
  return Muon(exec, muon);
}

AdamWStep Optimizer::StepAt(int64_t step, double learning_rate) const {
  AdamWArgs args;
  args.k = step;
  args.lr = static_cast<float>(learning_rate);
  args.beta1 = Beta(train_.betas(), 0, 0.9);
  args.beta2 = Beta(train_.betas(), 1, 0.95);
  return StepOf(args);
}

}  // namespace nsa::train
