#include "worker/train/model/model.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/nn/bias.h"
#include "kernels/nn/copy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/rms_norm.h"
#include "worker/train/model/activations.h"
#include "worker/train/model/block/block.h"
#include "worker/train/model/inputs.h"
#include "worker/train/model/linear.h"
#include "worker/train/model/model_config.h"
#include "worker/train/model/output_head.h"
#include "worker/train/model/statistics/attention_audit.h"
#include "worker/train/model/statistics/layer_totals.h"
#include "worker/train/model/statistics/readout.h"
#include "worker/train/model/statistics/token_losses.h"

namespace nsa::train {
namespace {

// The keys that each branch of a layer is to read in a pass.
struct ExpectedKeys {
  std::array<int64_t, kBranches> others = {};  // in layers that are not full
  std::array<int64_t, kBranches> full = {};
};

ExpectedKeys ExpectedKeysOf(const ModelConfig& config, std::span<const int32_t> doc_start) {
  ExpectedKeys expected{.others = KeysExpected(config.attention, doc_start)};
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.IsFull(layer)) continue;
    expected.full = KeysExpected(config.AttentionOf(layer), doc_start);
    break;
  }
  return expected;
}

}  // namespace

class Model::Impl {
 public:
  Impl(const ModelConfig& config, const ModelOptions& options, const Arena* parameters);
  absl::Status Allocate();

  absl::StatusOr<double> Forward(const Exec& exec, const TokenBatch& batch);
  absl::Status Backward(const Exec& exec, float gradient_scale, Arena* gradients,
                        const AfterPart& after_part, bool overwrite);
  absl::Status Load(const Exec& exec, int32_t micro_batch, const TokenBatch& batch);
  absl::Status EnqueueForward(const Exec& exec, int32_t micro_batch, bool loss_in_backward);
  absl::Status EnqueueReadout(const Exec& exec);
  double Collect(int32_t micro_batch);
  absl::Status NextLogits(const Exec& exec, std::span<const int32_t> tokens, int32_t position,
                          std::span<float> logits);
  absl::Status AuditAttention(const Exec& exec, int64_t step);
  std::vector<v1::LayerStats> TakeLayerStats();

  void set_on_layer(std::function<void(int32_t)> on_layer) { on_layer_ = std::move(on_layer); }
  void set_before_part(BeforePart before_part) { before_part_ = std::move(before_part); }
  std::vector<int64_t> PartBegins() const { return places_.PartBegins(); }
  Losses losses() const {
    return {static_cast<const float*>(readout_.Loss(arena_, 0).data), readout_.loss_stride()};
  }
  std::vector<bool> loaded_documents() const { return inputs_.documents(); }
  int64_t scratch_bytes() const;
  std::span<const float> token_losses() const { return token_losses_.Device(arena_, 0); }
  std::span<const float> token_losses(int32_t micro_batch) const {
    return token_losses_.Host(arena_, micro_batch);
  }
  int64_t activation_bytes() const { return arena_.bytes(); }

 private:
  using Slot = ActivationArena::Slot;

  void Plan();
  absl::StatusOr<Tensor> RunBlocks(const Exec& exec, int32_t micro_batch);
  OutputHead::Loss LossOf(int32_t micro_batch) const;
  absl::Status ClearAddedTo(const Exec& exec, Arena* gradients) const;
  absl::Status RecomputeBlock(const Exec& exec, int32_t layer);
  absl::Status BackwardOf(const BlockContext& block, int32_t layer, Arena* gradients,
                          const AfterPart& complete);
  absl::Status AuditLayer(const Exec& exec, int64_t step, int32_t layer);

  bool on_cuda() const { return options_.backend == Backend::kCuda; }
  // Input of block `layer`; that of block n_layers is the last one's output.
  Tensor InputOf(int32_t layer) const { return arena_[streams_[layer % streams_.size()]]; }

  BlockContext Context(const Exec& exec, int32_t layer) const {
    return {.exec = exec,
            .config = config_,
            .attention = config_.AttentionOf(layer),
            .places = places_.blocks[layer],
            .parameters = parameters_,
            .arena = arena_,
            .activations = activations_[layer],
            .workspace = workspaces_[layer],
            .doc_start = inputs_.doc_start(arena_, current_),
            .group = config_.context > 1 ? options_.group : nullptr,
            .overwrite = overwrite_};
  }
  void EnterLayer(int32_t layer) {
    if (on_layer_) on_layer_(layer);
  }
  absl::Status EnterPart(int32_t part, Pass pass) const {
    return before_part_ ? before_part_(part, pass) : absl::OkStatus();
  }
  ConstTensor Weight(const Place& place) const {
    return parameters_.weight(place.offset, place.size);
  }
  static Tensor Gradient(Arena* gradients, const Place& place) {
    return gradients->of(Slice{place.offset, place.offset + place.size});
  }

  const ModelConfig config_;
  const ModelOptions options_;
  const Arena& parameters_;
  const int64_t rows_;
  std::function<void(int32_t)> on_layer_;
  BeforePart before_part_;

  const ModelPlaces places_;

  ActivationArena arena_;
  Inputs inputs_;
  std::vector<Slot> streams_;  // the residual stream before each block, and behind the last
  std::vector<BlockActivations> activations_;  // whose memory is shared, in whole or in part
  std::vector<BlockWorkspace> workspaces_;     // in the same memory
  OutputHead head_;
  Slot dx_;
  Readout readout_;
  TokenLosses token_losses_;

  // Of the last forward, for Backward.
  int32_t current_ = 0;
  bool forward_done_ = false;
  bool has_loss_ = false;
  bool overwrite_ = false;  // of Backward

  // Statistics.
  std::vector<LayerTotals> totals_;
  std::vector<ExpectedKeys> keys_expected_;  // by micro-batch
  ExpectedKeys keys_without_documents_;
};

Model::Impl::Impl(const ModelConfig& config, const ModelOptions& options, const Arena* parameters)
    : config_(config),
      options_(options),
      parameters_(*parameters),
      rows_(config.rows()),
      places_(ModelPlaces::Of(parameters->layout(), config.n_layers)),
      inputs_({.backend = options.backend,
               .micro_batches = options.micro_batches,
               .rows = rows_,
               .document_rows = rows_ * config.context,
               .vocab = config.vocab},
              &arena_),
      head_(&config_, &places_, parameters),
      totals_(config.n_layers),
      keys_expected_(options.micro_batches) {
  keys_without_documents_ = ExpectedKeysOf(config_, {});
  Plan();
}

absl::Status Model::Impl::Allocate() {
  NSA_RETURN_IF_ERROR(arena_.Allocate(options_.backend));
  NSA_RETURN_IF_ERROR(readout_.Allocate(options_.backend));
  NSA_RETURN_IF_ERROR(token_losses_.Allocate(arena_, options_.backend));
  return inputs_.Allocate();
}

void Model::Impl::Plan() {
  const DType type = config_.attention.dtype;
  for (int32_t i = 0; i < (options_.training ? config_.n_layers + 1 : 2); ++i) {
    streams_.push_back(arena_.Plan(rows_ * config_.dim, type));
  }
  activations_ = PlanActivations(config_, options_.training, &arena_);
  workspaces_ = PlanWorkspaces(config_, options_.training, &arena_);
  head_.Plan(config_.logit_rows(), &arena_);
  token_losses_.Plan(rows_, options_.micro_batches, options_.keep_token_losses, &arena_);
  if (options_.training) dx_ = arena_.Plan(rows_ * config_.dim, type);
  readout_.Plan(options_.micro_batches, config_.n_layers, &arena_);
}

int64_t Model::Impl::scratch_bytes() const {
  int64_t attention = 0, width = 0;
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    attention = std::max(attention, PlanScratch(config_.AttentionOf(layer)).bytes);
    if (config_.qkv_bias) {
      width = std::max(width, config_.ProjectionWidthOf(config_.AttentionOf(layer)));
    }
  }
  return std::max({attention, cuda::BiasGradientWorkspaceBytes(width),
                   cuda::HeadWeightGradientWorkspaceBytes(
                       config_.attention.qk_norm_weights ? config_.attention.shape.d_k : 0),
                   cuda::RmsNormBackwardWorkspaceBytes(config_.dim),
                   cuda::EmbeddingBackwardWorkspaceBytes(rows_, config_.vocab, config_.dim)});
}

absl::Status Model::Impl::Load(const Exec& exec, int32_t micro_batch, const TokenBatch& batch) {
  NSA_RETURN_IF_ERROR(inputs_.Load(exec, arena_, micro_batch, batch));
  if (options_.statistics) {
    keys_expected_[micro_batch] = batch.doc_start.empty()
                                      ? keys_without_documents_
                                      : ExpectedKeysOf(config_, batch.doc_start);
  }
  return absl::OkStatus();
}

absl::Status Model::Impl::EnqueueReadout(const Exec& exec) {
  NSA_RETURN_IF_ERROR(readout_.Enqueue(exec, arena_));
  return token_losses_.Enqueue(exec, arena_);
}

double Model::Impl::Collect(int32_t micro_batch) {
  for (int32_t layer = 0; options_.statistics && layer < config_.n_layers; ++layer) {
    const LayerReadout read = readout_.ReadLayer(arena_, micro_batch, layer);
    const auto& s = read.selection;
    const ExpectedKeys& expected = keys_expected_[micro_batch];
    totals_[layer].Add(ReadGateStats(read.gate),
                       {.keys_sum = s[0], .keys_max = s[1], .rows = s[2], .at_max = s[3]},
                       read.keys_read, config_.IsFull(layer) ? expected.full : expected.others);
  }
  return readout_.ReadLoss(arena_, micro_batch);
}

// Embedding and all blocks; returns the residual stream behind the last one. The head comes next.
absl::StatusOr<Tensor> Model::Impl::RunBlocks(const Exec& exec, int32_t micro_batch) {
  current_ = micro_batch;
  if (options_.statistics) NSA_RETURN_IF_ERROR(Zero(exec, readout_.All(arena_, micro_batch)));
  NSA_RETURN_IF_ERROR(EnterPart(-1, Pass::kForward));
  NSA_RETURN_IF_ERROR(Embedding(exec, {.rows = rows_,
                                       .vocab = config_.vocab,
                                       .dim = config_.dim,
                                       .tokens = inputs_.tokens(arena_, micro_batch),
                                       .table = Weight(places_.embed),
                                       .y = InputOf(0)}));
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    const cuda::Range range("forward of a block");
    EnterLayer(layer);
    NSA_RETURN_IF_ERROR(EnterPart(layer, Pass::kForward));
    const BlockStatistics statistics =
        options_.statistics ? readout_.Layer(arena_, config_.AttentionOf(layer), micro_batch, layer)
                            : BlockStatistics();
    NSA_RETURN_IF_ERROR(
        Annotate(BlockForward(Context(exec, layer), InputOf(layer), InputOf(layer + 1), statistics),
                 absl::StrCat("forward of block ", layer)));
  }
  EnterLayer(-1);
  NSA_RETURN_IF_ERROR(EnterPart(config_.n_layers, Pass::kForward));
  return InputOf(config_.n_layers);
}

OutputHead::Loss Model::Impl::LossOf(int32_t micro_batch) const {
  return {.targets = inputs_.targets(arena_, micro_batch),
          .row_loss = token_losses_.Device(arena_, micro_batch),
          .mean_loss = readout_.Loss(arena_, micro_batch)};
}

absl::Status Model::Impl::EnqueueForward(const Exec& exec, int32_t micro_batch,
                                         bool loss_in_backward) {
  forward_done_ = false;
  NSA_ASSIGN_OR_RETURN(const Tensor x, RunBlocks(exec, micro_batch));
  NSA_RETURN_IF_ERROR(head_.Norm(exec, x));
  has_loss_ = !loss_in_backward;
  if (has_loss_) NSA_RETURN_IF_ERROR(head_.Forward(exec, LossOf(micro_batch)));
  forward_done_ = true;
  return absl::OkStatus();
}

absl::StatusOr<double> Model::Impl::Forward(const Exec& exec, const TokenBatch& batch) {
  forward_done_ = false;
  NSA_RETURN_IF_ERROR(Load(exec, 0, batch));
  NSA_RETURN_IF_ERROR(EnqueueForward(exec, 0, /*loss_in_backward=*/false));
  NSA_RETURN_IF_ERROR(EnqueueReadout(exec));
  if (on_cuda()) NSA_RETURN_IF_ERROR(cuda::Synchronize(exec.stream));
  return Collect(0);
}

// Computes again what blocks share and block `layer` + 1 has overwritten.
absl::Status Model::Impl::RecomputeBlock(const Exec& exec, int32_t layer) {
  if (layer == config_.n_layers - 1) return absl::OkStatus();  // still there
  const BlockContext block = Context(exec, layer);
  if (config_.recompute == Recompute::kMlp) return BlockRecomputeMlp(block);
  if (config_.recompute < Recompute::kMlp) return absl::OkStatus();
  return BlockForward(block, InputOf(layer), {}, {});
}

// Backward of a block. Most of its gradients are those of the MLP, which are complete long before
// the others.
absl::Status Model::Impl::BackwardOf(const BlockContext& block, int32_t layer, Arena* gradients,
                                     const AfterPart& complete) {
  NSA_RETURN_IF_ERROR(BlockMlpBackward(block, arena_[dx_], gradients));
  NSA_RETURN_IF_ERROR(complete(block.places.norm2.offset));
  NSA_RETURN_IF_ERROR(BlockAttentionBackward(block, InputOf(layer), arena_[dx_], gradients));
  return complete(block.places.norm1.offset);
}

// Clears what backward adds to, of the elements that `gradients` has, and what is behind them.
absl::Status Model::Impl::ClearAddedTo(const Exec& exec, Arena* gradients) const {
  const std::span<float> all = gradients->with_extras();
  const int64_t begin = gradients->slice().begin;
  const Slice held = {begin, begin + std::ssize(all)};
  std::vector<ElementRange> ranges;
  for (const ElementRange& range : places_.AddedTo(held.end)) {
    const Slice part = held.Common({range.begin, range.begin + range.size});
    if (!part.empty()) ranges.push_back({part.begin - begin, part.size()});
  }
  return ZeroRanges(exec, all, ranges);
}

absl::Status Model::Impl::Backward(const Exec& exec, float gradient_scale, Arena* gradients,
                                   const AfterPart& after_part, bool overwrite) {
  if (!options_.training || !std::exchange(forward_done_, false)) {
    return absl::FailedPreconditionError(
        "model: backward without a forward of a training model; call Forward first");
  }
  const auto complete = [&](int64_t begin) -> absl::Status {
    if (!after_part) return absl::OkStatus();
    const Slice held = gradients->slice();
    NSA_RETURN_IF_ERROR(after_part(begin));
    const bool moved = overwrite && gradients->slice() != held && begin > 0;
    return moved ? ClearAddedTo(exec, gradients) : absl::OkStatus();
  };
  overwrite_ = overwrite;
  if (overwrite) NSA_RETURN_IF_ERROR(ClearAddedTo(exec, gradients));
  NSA_RETURN_IF_ERROR(EnterPart(config_.n_layers, Pass::kBackward));
  NSA_RETURN_IF_ERROR(head_.Backward(exec, {.x = InputOf(config_.n_layers),
                                            .loss = LossOf(current_),
                                            .has_loss = has_loss_,
                                            .gradient_scale = gradient_scale,
                                            .dh = arena_[workspaces_.back().dh],
                                            .dx = arena_[dx_],
                                            .gradients = gradients,
                                            .overwrite = overwrite}));
  NSA_RETURN_IF_ERROR(complete(places_.norm_f.offset));
  for (int32_t layer = config_.n_layers - 1; layer >= 0; --layer) {
    const cuda::Range range("backward of a block");
    EnterLayer(layer);
    NSA_RETURN_IF_ERROR(EnterPart(layer, Pass::kBackward));
    NSA_RETURN_IF_ERROR(
        Annotate(RecomputeBlock(exec, layer), absl::StrCat("recomputation of block ", layer)));
    NSA_RETURN_IF_ERROR(Annotate(BackwardOf(Context(exec, layer), layer, gradients, complete),
                                 absl::StrCat("backward of block ", layer)));
  }
  EnterLayer(-1);
  NSA_RETURN_IF_ERROR(EmbeddingBackward(exec, {.rows = rows_,
                                               .vocab = config_.vocab,
                                               .dim = config_.dim,
                                               .tokens = inputs_.tokens(arena_, current_),
                                               .dy = arena_[dx_],
                                               .dtable = Gradient(gradients, places_.embed)}));
  return complete(0);
}

absl::Status Model::Impl::NextLogits(const Exec& exec, std::span<const int32_t> tokens,
                                     int32_t position, std::span<float> logits) {
  if (on_cuda()) return absl::UnimplementedError("model: next logits on a GPU; sample on the CPU");
  if (config_.context > 1 || position < 0 || position >= options_.seq_len ||
      static_cast<int64_t>(tokens.size()) != rows_) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: position ", position, " of ", tokens.size(), " tokens (must be ",
                     rows_, " = B·S); fill the row up to the model's shape"));
  }
  forward_done_ = false;
  NSA_RETURN_IF_ERROR(inputs_.LoadTokens(exec, arena_, 0, tokens));
  NSA_ASSIGN_OR_RETURN(const Tensor x, RunBlocks(exec, 0));
  NSA_RETURN_IF_ERROR(head_.Norm(exec, x));
  const std::span<const float> h =
      head_.h().as<float>().subspan(int64_t{position} * config_.dim, config_.dim);
  return Linear(exec, {1, config_.dim, config_.vocab}, h, Weight(places_.head), logits);
}

absl::Status Model::Impl::AuditLayer(const Exec& exec, int64_t step, int32_t layer) {
  const BlockContext block = Context(exec, layer);
  const bool chooses = block.attention.has(kSel) || block.attention.has(kWin);
  if (!chooses || config_.IsFull(layer)) return absl::OkStatus();  // a full layer keeps everything
  // All blocks share the memory of the attention, and backward left that of the first.
  if (config_.recompute == Recompute::kBlock && layer > 0) {
    NSA_RETURN_IF_ERROR(EnterPart(layer, Pass::kAudit));
    NSA_RETURN_IF_ERROR(BlockForward(block, InputOf(layer), {}, {}));
  }
  const LayerAudit audit = {.config = block.attention,
                            .doc_start = block.doc_start,
                            .saved = arena_[block.activations.saved],
                            .step = step};
  // The projections' workspace is free between steps, and larger: at least R·H·dk elements.
  NSA_ASSIGN_OR_RETURN(const v1::AttentionAudit result,
                       audit.Run(exec, arena_[block.workspace.wide].data));
  totals_[layer].set_audit(result);
  return absl::OkStatus();
}

absl::Status Model::Impl::AuditAttention(const Exec& exec, int64_t step) {
  if (!options_.training || !options_.statistics) {
    return absl::FailedPreconditionError(
        "model: audit of a model without training and statistics; create it with both");
  }
  current_ = options_.micro_batches - 1;  // an evaluation may have changed it
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    EnterLayer(layer);
    NSA_RETURN_IF_ERROR(
        Annotate(AuditLayer(exec, step, layer), absl::StrCat("audit of block ", layer)));
  }
  EnterLayer(-1);
  return absl::OkStatus();
}

std::vector<v1::LayerStats> Model::Impl::TakeLayerStats() {
  std::vector<v1::LayerStats> stats;
  if (!options_.statistics) return stats;
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    stats.push_back(totals_[layer].ToProto(layer, config_.AttentionOf(layer)));
    totals_[layer] = {};
  }
  return stats;
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::JobSpec& spec,
                                                     const ModelOptions& options,
                                                     const Arena* parameters) {
  ModelConfig config = ModelConfigOf(spec);
  config.attention.shape.batch = options.batch;
  config.attention.shape.seq_len = options.seq_len;
  if (options.group != nullptr) {
    NSA_RETURN_IF_ERROR(config.DivideContext(options.group->size()));
  }
  config.recompute = options.recompute.value_or(config.recompute);
  if (options.backend == Backend::kCuda) config.attention.dtype = DType::kBf16;
  NSA_RETURN_IF_ERROR(Annotate(config.Validate(options.backend), "model"));
  auto impl = std::make_unique<Impl>(config, options, parameters);
  NSA_RETURN_IF_ERROR(impl->Allocate());
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

void Model::set_on_layer(std::function<void(int32_t)> on_layer) {
  impl_->set_on_layer(std::move(on_layer));
}
void Model::set_before_part(BeforePart before_part) {
  impl_->set_before_part(std::move(before_part));
}
absl::StatusOr<double> Model::Forward(const Exec& exec, const TokenBatch& batch) {
  return impl_->Forward(exec, batch);
}
absl::Status Model::Backward(const Exec& exec, float gradient_scale, Arena* gradients,
                             const AfterPart& after_part, bool overwrite) {
  return impl_->Backward(exec, gradient_scale, gradients, after_part, overwrite);
}
std::vector<int64_t> Model::PartBegins() const { return impl_->PartBegins(); }
absl::Status Model::Load(const Exec& exec, int32_t micro_batch, const TokenBatch& batch) {
  return impl_->Load(exec, micro_batch, batch);
}
absl::Status Model::EnqueueForward(const Exec& exec, int32_t micro_batch, bool loss_in_backward) {
  return impl_->EnqueueForward(exec, micro_batch, loss_in_backward);
}
absl::Status Model::EnqueueReadout(const Exec& exec) { return impl_->EnqueueReadout(exec); }
double Model::Collect(int32_t micro_batch) { return impl_->Collect(micro_batch); }
std::vector<bool> Model::loaded_documents() const { return impl_->loaded_documents(); }
Model::Losses Model::losses() const { return impl_->losses(); }
int64_t Model::scratch_bytes() const { return impl_->scratch_bytes(); }
std::span<const float> Model::token_losses() const { return impl_->token_losses(); }
std::span<const float> Model::token_losses(int32_t micro_batch) const {
  return impl_->token_losses(micro_batch);
}
absl::Status Model::NextLogits(const Exec& exec, std::span<const int32_t> tokens, int32_t position,
                               std::span<float> logits) {
  return impl_->NextLogits(exec, tokens, position, logits);
}
absl::Status Model::AuditAttention(const Exec& exec, int64_t step) {
  return impl_->AuditAttention(exec, step);
}
std::vector<v1::LayerStats> Model::TakeLayerStats() { return impl_->TakeLayerStats(); }
int64_t Model::activation_bytes() const { return impl_->activation_bytes(); }

}  // namespace nsa::train
