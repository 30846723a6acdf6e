#include "worker/train/model/optimizer.h"

#include <utility>

#include "common/base/status.h"
#include "common/estimate/optimizer_traits.h"
#include "kernels/optimizer/global_norm.h"

namespace nsa::train {
namespace {

float Beta(const google::protobuf::RepeatedField<double>& betas, int index, double otherwise) {
  return static_cast<float>(index < betas.size() ? betas[index] : otherwise);
}

// The matrices in `share` that Muon updates; they begin at 0 where the share begins.
std::vector<MuonMatrix> MatricesOf(const v1::TrainSpec& train, const ParameterLayout& layout,
                                   const Slice& share) {
  std::vector<MuonMatrix> matrices;
  if (!TraitsOf(train).whole_matrices) return matrices;
  for (const ParameterInfo& tensor : layout.tensors()) {
    if (!tensor.hidden || tensor.offset < share.begin || tensor.offset >= share.end) continue;
    matrices.push_back({tensor.offset - share.begin, tensor.shape[0], tensor.shape[1]});
  }
  return matrices;
}

// The runs of elements in `share` that AdamW treats alike. A gap between tensors belongs to the run
// before it; its elements are and stay 0.
std::vector<AdamWSegment> SegmentsOf(const v1::TrainSpec& train, const ParameterLayout& layout,
                                     const Slice& share) {
  const bool whole_matrices = TraitsOf(train).whole_matrices;
  const std::span<const ParameterInfo> tensors = layout.tensors();
  std::vector<AdamWSegment> segments;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t end = i + 1 < tensors.size() ? tensors[i + 1].offset : layout.size();
    const Slice part = share.Common({tensors[i].offset, end});
    if (part.empty()) continue;
    const bool update = !(whole_matrices && tensors[i].hidden);
    if (!segments.empty() && segments.back().decay == tensors[i].decay &&
        segments.back().update == update) {
      segments.back().size += part.size();
    } else {
      segments.push_back({.size = part.size(), .decay = tensors[i].decay, .update = update});
    }
  }
  return segments;
}

// What the learning rate of Muon's matrices is multiplied with.
double MuonFactor(const v1::TrainSpec& train) {
  return train.has_muon_lr() ? train.muon_lr() / train.lr() : 1;
}

}  // namespace

Optimizer::Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout)
    : Optimizer(train, layout, Slice{0, layout->size()}, Arena(layout), Arena(layout)) {}

Optimizer::Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout, const Slice& share,
                     Arena m, Arena v)
    : train_(train),
      share_(share),
      segments_(SegmentsOf(train, *layout, share)),
      matrices_(MatricesOf(train, *layout, share)),
      m_(std::move(m)),
      v_(std::move(v)) {}

std::vector<MatmulArgs> Optimizer::Products(const v1::TrainSpec& train,
                                            const ParameterLayout& layout, const Slice& share) {
  return MuonProducts(MatricesOf(train, layout, share));
}

absl::StatusOr<Optimizer> Optimizer::Create(const v1::TrainSpec& train,
                                            const ParameterLayout* layout, Backend backend,
                                            const Slice& share) {
  const Arena::Options options = {.backend = backend, .slice = share};
  NSA_ASSIGN_OR_RETURN(Arena m, Arena::Create(layout, options, "optimizer moments"));
  NSA_ASSIGN_OR_RETURN(Arena v, Arena::Create(layout, options, "optimizer moments"));
  return Optimizer(train, layout, share, std::move(m), std::move(v));
}

absl::StatusOr<double> Optimizer::GlobalNorm(const Exec& exec, const Arena& gradients) const {
  float norm = 0;
  NSA_RETURN_IF_ERROR(
      nsa::GlobalNorm(exec, {.values = gradients.flat(), .norm = std::span<float>(&norm, 1)}));
  return norm;
}

AdamWArgs Optimizer::Arguments(const Arena& gradients, Arena* parameters) {
  return {.parameters = parameters->of(share_),
          .gradients = gradients.of(share_),
          .m = m_.flat(),
          .v = v_.flat(),
          .segments = segments_,
          .beta1 = Beta(train_.betas(), 0, 0.9),
          .beta2 = Beta(train_.betas(), 1, 0.95),
          .weight_decay = static_cast<float>(train_.weight_decay()),
          .half = parameters->half(share_)};
}

MuonArgs Optimizer::MuonArguments(const Arena& gradients, Arena* parameters) {
  return {.parameters = parameters->of(share_),
          .gradients = gradients.of(share_),
          .m = m_.flat(),
          .v = v_.flat(),
          .matrices = matrices_,
          .beta1 = Beta(train_.muon_betas(), 0, 0.95),
          .beta2 = Beta(train_.muon_betas(), 1, 0.95),
          .weight_decay = static_cast<float>(train_.weight_decay()),
          .half = parameters->half(share_),
          .lr_factor = static_cast<float>(MuonFactor(train_))};
}

absl::Status Optimizer::Update(const Exec& exec, int64_t step, double learning_rate, double norm,
                               const Arena& gradients, Arena* parameters) {
  if (share_.empty()) return absl::OkStatus();
  const double clip = train_.grad_clip();
  const double scale = clip > 0 && norm > clip ? clip / norm : 1.0;
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
  if (share_.empty()) return absl::OkStatus();
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
