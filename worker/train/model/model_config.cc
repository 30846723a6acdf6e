#include "worker/train/model/model_config.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/estimate/model_options.h"
#include "kernels/nsa/layer/projections.h"

namespace nsa::train {
namespace {

BranchSet Union(const std::vector<LayerAttention>& layers) {
  BranchSet all = {};
  for (const LayerAttention& layer : layers) {
    for (int c = 0; c < kBranches; ++c) all[c] = all[c] || layer.branches[c];
  }
  return all;
}

RopeScaling ScalingOf(const v1::RopeScaling& scaling) {
  RopeScaling result{.factor = scaling.factor(),
                     .original = static_cast<double>(scaling.original_seq_len())};
  if (scaling.type() == v1::ROPE_SCALING_TYPE_LLAMA3) {
    result.kind = RopeScaling::Kind::kLlama3;
    result.low = scaling.low_freq_factor(), result.high = scaling.high_freq_factor();
  } else if (scaling.type() == v1::ROPE_SCALING_TYPE_YARN) {
    result.kind = RopeScaling::Kind::kYarn;
    result.low = scaling.beta_slow(), result.high = scaling.beta_fast();
  }
  return result;
}

}  // namespace

NsaLayerConfig ModelConfig::AttentionOf(int32_t layer) const {
  NsaLayerConfig of_layer = attention;
  of_layer.branches = layers[layer % layers.size()].branches;
  const bool full = IsFull(layer);
  if (full) of_layer.shape = of_layer.shape.Full();
  if (rotates_windows_only && (full || !of_layer.has(kWin))) of_layer.rope_scale = kNoRotation;
  return of_layer;
}

int64_t ModelConfig::ProjectionWidthOf(const NsaLayerConfig& layer) const {
  return context * ProjectionWidth(layer);
}

absl::Status ModelConfig::DivideContext(int32_t ranks) {
  NsaShape& shape = attention.shape;
  if (ranks < 1 || shape.n_kv_groups % ranks != 0 || shape.seq_len % ranks != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.context_parallel: ", ranks, " (must divide n_kv_groups = ", shape.n_kv_groups,
        " and seq_len = ", shape.seq_len, "); choose another"));
  }
  context = ranks;
  shape.n_heads /= ranks;
  shape.n_kv_groups /= ranks;
  return absl::OkStatus();
}

absl::Status ModelConfig::Validate(Backend backend) const {
  if (n_layers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("n_layers: ", n_layers, " (at least 1); take 1"));
  }
  NSA_RETURN_IF_ERROR(attention.Validate());
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    NSA_RETURN_IF_ERROR(Annotate(AttentionOf(layer).Validate(), absl::StrCat("layer ", layer)));
  }
  if (swiglu && activation != Activation::kSilu) {
    return absl::InvalidArgumentError("activation: relu2 with mlp: swiglu (silu); set silu");
  }
  if (swiglu && hidden % kMlpUnitsMultiple != 0) {
    return absl::InvalidArgumentError(absl::StrCat("hidden: ", hidden,
                                                   " (with mlp: swiglu a multiple of ",
                                                   kMlpUnitsMultiple, "); set mlp_dim"));
  }
  if (backend != Backend::kCuda) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(attention.shape.ValidateOnCuda());
  if (dim % 8 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("dim: ", dim, " (must be a multiple of 8 on a GPU); take ", (dim / 8 + 1) * 8));
}

ModelConfig ModelConfigOf(const v1::JobSpec& spec) {
  ModelConfig config;
  config.layers = LayersOf(spec.nsa());
  config.attention = {
      .shape = ShapeOf(spec),
      .dtype = DType::kF32,
      .branches = Union(config.layers),
      .phi = spec.nsa().phi() == v1::PHI_MLP ? Phi::kMlp : Phi::kAvg,
      .gate = spec.nsa().gate() == v1::GATE_SIGMOID ? GateKind::kSigmoid : GateKind::kSoftmax,
      .rope_base = static_cast<float>(spec.model().rope_base()),
      .rope_scale = static_cast<float>(spec.model().rope_scale()),
      .rope_scaling = ScalingOf(spec.model().rope_scaling()),
      .qk_norm = spec.model().qk_norm(),
      .qk_norm_weights = spec.model().qk_norm_weights(),
      .norm_eps = static_cast<float>(NormEpsOf(spec.model()))};
  config.rotates_windows_only = spec.model().rope_layers() == v1::ROPE_LAYERS_WINDOW;
  config.dim = spec.model().dim();
  config.n_layers = spec.model().n_layers();
  config.qkv_bias = spec.model().qkv_bias();
  config.hidden = static_cast<int32_t>(MlpUnitsOf(spec.model()));
  config.swiglu = IsSwiglu(spec.model());
  if (spec.model().activation() == v1::ACTIVATION_RELU2) config.activation = Activation::kRelu2;
  config.vocab = VocabOf(spec);
  config.recompute = RecomputeOf(spec);
  return config;
}

}  // namespace nsa::train
