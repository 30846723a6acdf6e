#include "worker/train/decode/decoder.h"

#include <omp.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/rms_norm.h"
#include "worker/train/decode/block_rows.h"
#include "worker/train/decode/rotation.h"
#include "worker/train/decode/sequence_memory.h"
#include "worker/train/model/block.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {
namespace {

// A single row of a model with fewer parameters is computed by one thread: its loops, some ten in a
// layer, are shorter than waking the others. In the model of configs/jobs/demo.yaml a loop takes
// about 4 µs.
constexpr int64_t kParametersForThreads = 8'000'000;

static_assert(Decoder::kMostRows == kDecodeRows);

// Limits the kernels of this thread to one thread as long as it lives.
class OneThread {
 public:
  explicit OneThread(bool wanted) : before_(wanted ? omp_get_max_threads() : 0) {
    if (before_ > 0) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ > 0) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

absl::StatusOr<ModelConfig> ConfigOf(const v1::JobSpec& spec, int32_t context) {
  ModelConfig config = ModelConfigOf(spec);
  config.attention.shape.batch = 1;
  config.attention.shape.seq_len = context;
  NSA_RETURN_IF_ERROR(Annotate(config.Validate(Backend::kCpu), "decode"));
  return config;
}

}  // namespace

class Decoder::Impl {
 public:
  Impl(const ModelConfig& config, const DecoderOptions& options, const Arena* parameters);
  absl::Status Allocate() { return memory_.Allocate(); }

  absl::StatusOr<std::span<const float>> Prefill(const Exec& exec, std::span<const int32_t> tokens);
  absl::StatusOr<std::span<const float>> PrefillEach(const Exec& exec,
                                                     std::span<const int32_t> tokens);
  void Reset();

  int32_t context() const { return config_.attention.shape.seq_len; }
  int32_t tokens() const { return static_cast<int32_t>(position_); }
  const std::array<int64_t, kBranches>& keys_read(int32_t layer) const { return keys_read_[layer]; }
  int64_t bytes() const {
    return memory_.bytes() + static_cast<int64_t>(each_.size() * sizeof(float));
  }

 private:
  absl::Status Check(std::span<const int32_t> tokens) const;
  absl::Status ReadRows(const Exec& exec, std::span<const int32_t> tokens);
  absl::Status Head(const Exec& exec, int64_t first, int64_t rows, const Tensor& logits);
  ConstTensor Weight(const Place& place) const {
    return parameters_.weight(place.offset, place.size);
  }

  const ModelConfig config_;
  const std::optional<int32_t> separator_;
  const Arena& parameters_;
  const ModelPlaces places_;
  SequenceMemory memory_;
  Rotation rotation_;
  std::vector<float> each_;  // [kMostRows, V], once PrefillEach() was called

  int64_t position_ = 0;         // of the next token
  int32_t document_ = 0;         // where its document begins
  std::vector<int32_t> starts_;  // of the tokens that are computed: where their documents begin
  std::vector<std::array<int64_t, kBranches>> keys_read_;  // by layer
};

Decoder::Impl::Impl(const ModelConfig& config, const DecoderOptions& options,
                    const Arena* parameters)
    : config_(config),
      separator_(options.separator),
      parameters_(*parameters),
      places_(ModelPlaces::Of(parameters->layout(), config.n_layers)),
      memory_(config),
      rotation_(config.attention),
      keys_read_(config.n_layers) {}

void Decoder::Impl::Reset() {
  memory_.Clear();
  position_ = 0;
  document_ = 0;
  keys_read_.assign(keys_read_.size(), {});
}

absl::Status Decoder::Impl::Check(std::span<const int32_t> tokens) const {
  if (tokens.empty()) {
    return absl::InvalidArgumentError("decode: 0 tokens (1 or more); begin with a separator");
  }
  const int64_t room = context() - position_;
  if (static_cast<int64_t>(tokens.size()) > room) {
    return absl::OutOfRangeError(absl::StrFormat(
        "decode: %d tokens after %d (context: %d); reset, or create a decoder with a larger "
        "context",
        tokens.size(), position_, context()));
  }
  for (const int32_t token : tokens) {
    if (token >= 0 && token < config_.vocab) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "decode: token: %d (0 to %d); use the job's tokenizer", token, config_.vocab - 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Decoder::Impl::Prefill(const Exec& exec,
                                                              std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(Check(tokens));
  while (true) {
    const std::span<const int32_t> rows =
        tokens.first(std::min(tokens.size(), static_cast<size_t>(kDecodeRows)));
    tokens = tokens.subspan(rows.size());
    const OneThread one(rows.size() == 1 && parameters_.layout().count() < kParametersForThreads);
    NSA_RETURN_IF_ERROR(ReadRows(exec, rows));
    if (!tokens.empty()) continue;
    NSA_RETURN_IF_ERROR(
        Head(exec, static_cast<int64_t>(rows.size()) - 1, 1, memory_.work().logits));
    return memory_.work().logits.as<const float>();
  }
}

absl::StatusOr<std::span<const float>> Decoder::Impl::PrefillEach(const Exec& exec,
                                                                  std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(Check(tokens));
  const auto rows = static_cast<int64_t>(tokens.size());
  if (rows > kMostRows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("decode: %d tokens at once (1 to %d); divide them", rows, kMostRows));
  }
  each_.resize(static_cast<size_t>(kMostRows * config_.vocab));
  NSA_RETURN_IF_ERROR(ReadRows(exec, tokens));
  const Tensor logits(each_.data(), rows * config_.vocab, DType::kF32);
  NSA_RETURN_IF_ERROR(Head(exec, 0, rows, logits));
  return logits.as<const float>();
}

// Runs at most kDecodeRows tokens through all blocks.
absl::Status Decoder::Impl::ReadRows(const Exec& exec, std::span<const int32_t> tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const DecodeWork& work = memory_.work();
  starts_.clear();
  for (const int32_t token : tokens) {
    if (token == separator_) document_ = static_cast<int32_t>(position_ + starts_.size());
    starts_.push_back(document_);
  }
  rotation_.SetPositions(position_, rows);
  NSA_RETURN_IF_ERROR(Embedding(exec, {.rows = rows,
                                       .vocab = config_.vocab,
                                       .dim = config_.dim,
                                       .tokens = tokens,
                                       .table = Weight(places_.embed),
                                       .y = Tensor(work.x.data, rows * config_.dim, DType::kF32)}));
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    NSA_RETURN_IF_ERROR(Annotate(BlockRows(exec,
                                           {.config = config_,
                                            .attention = config_.AttentionOf(layer),
                                            .places = places_.blocks[layer],
                                            .parameters = parameters_,
                                            .rotation = rotation_,
                                            .work = work,
                                            .cache = memory_.cache(layer),
                                            .first = position_,
                                            .doc_start = starts_},
                                           &keys_read_[layer]),
                                 absl::StrCat("decode: block ", layer)));
  }
  position_ += rows;
  return absl::OkStatus();
}

// The logits after `rows` rows of the residual stream, from row `first` on.
absl::Status Decoder::Impl::Head(const Exec& exec, int64_t first, int64_t rows,
                                 const Tensor& logits) {
  const DecodeWork& work = memory_.work();
  const int64_t dim = config_.dim;
  const Tensor h(work.h.data, rows * dim, DType::kF32);
  NSA_RETURN_IF_ERROR(RmsNorm(exec, {.rows = rows,
                                     .dim = dim,
                                     .x = work.x.as<const float>().subspan(first * dim, rows * dim),
                                     .weight = Weight(places_.norm_f),
                                     .y = h}));
  return Product(exec, {rows, dim, config_.vocab}, h, Weight(places_.head), logits);
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const v1::JobSpec& spec,
                                                         const Arena* parameters,
                                                         const DecoderOptions& options) {
  NSA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(spec, options.context));
  auto impl = std::make_unique<Impl>(config, options, parameters);
  NSA_RETURN_IF_ERROR(impl->Allocate());
  return std::unique_ptr<Decoder>(new Decoder(std::move(impl)));
}

absl::StatusOr<int64_t> Decoder::BytesFor(const v1::JobSpec& spec, int32_t context) {
  NSA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(spec, context));
  return SequenceMemory(config).bytes();
}

Decoder::Decoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Decoder::~Decoder() = default;

absl::StatusOr<std::span<const float>> Decoder::Prefill(const Exec& exec,
                                                        std::span<const int32_t> tokens) {
  return impl_->Prefill(exec, tokens);
}
absl::StatusOr<std::span<const float>> Decoder::Step(const Exec& exec, int32_t token) {
  return impl_->Prefill(exec, {&token, 1});
}
absl::StatusOr<std::span<const float>> Decoder::PrefillEach(const Exec& exec,
                                                            std::span<const int32_t> tokens) {
  return impl_->PrefillEach(exec, tokens);
}
void Decoder::Reset() { impl_->Reset(); }
int32_t Decoder::context() const { return impl_->context(); }
int32_t Decoder::tokens() const { return impl_->tokens(); }
const std::array<int64_t, kBranches>& Decoder::keys_read(int32_t layer) const {
  return impl_->keys_read(layer);
}
int64_t Decoder::bytes() const { return impl_->bytes(); }

}  // namespace nsa::train
