#include "worker/train/decode/gpu_decoder.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/nn/embedding.h"
#include "worker/train/decode/block_rows.h"
#include "worker/train/decode/checks.h"
#include "worker/train/decode/linear_rows.h"

namespace nsa::train {
namespace {

static_assert(Decoder::kMostRows == kDecodeRows);

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

void ToFloats(std::span<const uint16_t> from, float* to) {
  std::ranges::transform(from, to, FromBf16);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuDecoder>> GpuDecoder::Create(const Exec& exec,
                                                               const v1::JobSpec& spec,
                                                               const Arena* parameters,
                                                               const DecoderOptions& options) {
  NSA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(spec, options, Backend::kCuda));
  std::unique_ptr<GpuDecoder> decoder(new GpuDecoder(exec, config, options, parameters));
  NSA_RETURN_IF_ERROR(decoder->Allocate());
  return decoder;
}

GpuDecoder::GpuDecoder(const Exec& exec, const ModelConfig& config, const DecoderOptions& options,
                       const Arena* parameters)
    : exec_(exec),
      config_(config),
      parameters_(*parameters),
      places_(ModelPlaces::Of(parameters->layout(), config.n_layers)),
      memory_(config, Backend::kCuda,
              {.documents = options.separator.has_value(), .slots = options.slots}) {
  sequences_.reserve(options.slots);
  for (int32_t slot = 0; slot < options.slots; ++slot) sequences_.emplace_back(options.separator);
}

absl::Status GpuDecoder::Allocate() {
  NSA_RETURN_IF_ERROR(memory_.Allocate());
  NSA_ASSIGN_OR_RETURN(before_, cuda::Event::Create());
  const int64_t bytes = static_cast<int64_t>(sizeof(DecodeInputs)) + LogitBytes(1);
  for (Sequence& sequence : sequences_) {
    NSA_ASSIGN_OR_RETURN(sequence.stream, cuda::Stream::Create());
    NSA_ASSIGN_OR_RETURN(sequence.pinned,
                         cuda::PinnedMemory::Allocate(bytes, "one token of decoding"));
  }
  return absl::OkStatus();
}

void GpuDecoder::Reset(int32_t slot) {
  memory_.Clear(slot);
  Sequence& sequence = sequences_[slot];
  sequence.position = 0;
  sequence.documents.Clear();
  sequence.clear_keys_read = true;
}

absl::StatusOr<std::span<const float>> GpuDecoder::Prefill(int32_t slot,
                                                           std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(CheckTokens(tokens, this->tokens(slot), context(), config_.vocab));
  while (tokens.size() > 1) {
    const std::span<const int32_t> rows =
        tokens.first(std::min(tokens.size(), static_cast<size_t>(kDecodeRows)));
    tokens = tokens.subspan(rows.size());
    NSA_RETURN_IF_ERROR(ReadRows(slot, rows));
    if (tokens.empty()) return Head(static_cast<int64_t>(rows.size()) - 1, 1);
  }
  const SlotToken last{slot, tokens[0]};
  return ReadTokens({&last, 1});
}

absl::StatusOr<std::span<const float>> GpuDecoder::PrefillEach(int32_t slot,
                                                               std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(CheckEach(tokens, this->tokens(slot), context(), config_.vocab));
  if (tokens.size() == 1) {
    const SlotToken one{slot, tokens[0]};
    return ReadTokens({&one, 1});
  }
  NSA_RETURN_IF_ERROR(ReadRows(slot, tokens));
  return Head(0, static_cast<int64_t>(tokens.size()));
}

absl::StatusOr<std::span<const float>> GpuDecoder::Step(std::span<const SlotToken> tokens) {
  NSA_RETURN_IF_ERROR(CheckStep(tokens, *this));
  return ReadTokens(tokens);
}

absl::StatusOr<std::array<int64_t, kBranches>> GpuDecoder::keys_read(int32_t slot,
                                                                     int32_t layer) const {
  std::array<int64_t, kBranches> keys = {};
  if (sequences_[slot].clear_keys_read) return keys;
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec_.stream, keys.data(),
                                      memory_.keys_read(slot, layer).data, sizeof(keys)));
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec_.stream));
  return keys;
}

// Makes room for the tokens in the caches and returns what the kernels read of them.
absl::StatusOr<DecodeInputs> GpuDecoder::Append(const Exec& exec, int32_t slot,
                                                std::span<const int32_t> tokens) {
  Sequence& sequence = sequences_[slot];
  NSA_RETURN_IF_ERROR(memory_.Append(exec, slot, static_cast<int64_t>(tokens.size())));
  if (tokens.size() == 1 && CompletesBlock(sequence.position)) {
    NSA_RETURN_IF_ERROR(memory_.AppendBlock(exec, slot));
  }
  if (sequence.clear_keys_read) {
    NSA_RETURN_IF_ERROR(
        cuda::ZeroBytes(exec.stream, memory_.keys_read(slot, 0).data,
                        config_.n_layers * static_cast<int64_t>(kBranches * sizeof(int64_t))));
    sequence.clear_keys_read = false;
  }
  DecodeInputs inputs = {};
  inputs.at[0] = inputs.at_all[0] = static_cast<int32_t>(sequence.position);
  std::ranges::copy(memory_.begins(slot), inputs.at + 1);
  std::ranges::copy(memory_.begins(slot), inputs.at_all + 1);
  inputs.at_all[1 + kWin] = 0;  // nothing is forgotten
  std::ranges::copy(tokens, inputs.tokens);
  std::ranges::copy(sequence.documents.Of(tokens, sequence.position), inputs.doc_start);
  return inputs;
}

// Up to how many tokens the kernels serve that are enqueued for the one at this position: twice as
// many as there are, at most.
int64_t GpuDecoder::PlannedTokens(int64_t position) const {
  const auto tokens = static_cast<uint64_t>(std::max(position + 1, kDecodeRows));
  return std::min<int64_t>(context(), static_cast<int64_t>(std::bit_ceil(tokens)));
}

// Enqueues several tokens of a sequence, at most kDecodeRows, through all blocks.
absl::Status GpuDecoder::ReadRows(int32_t slot, std::span<const int32_t> tokens) {
  Sequence& sequence = sequences_[slot];
  NSA_ASSIGN_OR_RETURN(const DecodeInputs inputs, Append(exec_, slot, tokens));
  const DecodeWork& work = memory_.work();
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec_.stream, work.inputs.data, &inputs, sizeof(inputs)));
  NSA_RETURN_IF_ERROR(EnqueueRows(exec_, {.work = work,
                                          .slot = slot,
                                          .doc_start = std::span(inputs.doc_start, tokens.size()),
                                          .first = sequence.position}));
  sequence.position += std::ssize(tokens);
  return absl::OkStatus();
}

// Whether the token at this position completes a compression block.
bool GpuDecoder::CompletesBlock(int64_t position) const {
  const NsaLayerConfig& attention = config_.attention;
  return (attention.has(kCmp) || attention.has(kSel)) &&
         train::CompletesBlock(attention.shape, position + 1);
}

// Reads one token of each of several sequences and returns the logits after them.
absl::StatusOr<std::span<const float>> GpuDecoder::ReadTokens(std::span<const SlotToken> tokens) {
  absl::Status status = before_.Record(exec_.stream);
  size_t begun = 0;
  for (; status.ok() && begun < tokens.size(); ++begun) status = BeginToken(tokens[begun]);
  // Also after an error: what a sequence copies must not change before it has ended.
  const auto vocab = static_cast<size_t>(config_.vocab);
  logits_.resize(tokens.size() * vocab);
  for (size_t i = 0; i < begun; ++i) {
    const Sequence& sequence = sequences_[tokens[i].slot];
    status.Update(cuda::Synchronize(sequence.stream.get()));
    ToFloats({sequence.logits(), vocab}, logits_.data() + i * vocab);
  }
  NSA_RETURN_IF_ERROR(status);
  return logits_;
}

// Enqueues all work of one token on the stream of its slot.
absl::Status GpuDecoder::BeginToken(const SlotToken& next) {
  Sequence& sequence = sequences_[next.slot];
  const bool completes_block = CompletesBlock(sequence.position);
  OneToken& one = sequence.one_token[completes_block];
  Exec exec = exec_;
  exec.stream = sequence.stream.get();
  NSA_RETURN_IF_ERROR(before_.Wait(exec.stream));
  // Nothing reads the inputs of the token before: every call waits for its tokens.
  NSA_ASSIGN_OR_RETURN(*sequence.inputs(), Append(exec, next.slot, {&next.token, 1}));
  if (sequence.position >= one.ran) {
    one.ran = PlannedTokens(sequence.position);
    NSA_RETURN_IF_ERROR(EnqueueToken(exec, next.slot, completes_block));
  } else {
    if (sequence.position >= one.planned) {
      NSA_ASSIGN_OR_RETURN(one.graph, cuda::Graph::Capture(exec.stream, [&] {
                             return EnqueueToken(exec, next.slot, completes_block);
                           }));
      one.planned = one.ran;
    }
    NSA_RETURN_IF_ERROR(one.graph.Launch(exec.stream));
  }
  ++sequence.position;
  return absl::OkStatus();
}

// All work of one token, with the copies from and to pinned memory.
absl::Status GpuDecoder::EnqueueToken(const Exec& exec, int32_t slot, bool completes_block) {
  const DecodeWork& work = memory_.work_of_one(slot);
  const Sequence& sequence = sequences_[slot];
  const DecodeInputs& inputs = *sequence.inputs();
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, work.inputs.data, &inputs, sizeof(inputs)));
  NSA_RETURN_IF_ERROR(EnqueueRows(exec, {.work = work,
                                         .slot = slot,
                                         .doc_start = std::span(inputs.doc_start, 1),
                                         .first = sequence.one_token[completes_block].ran - 1,
                                         .completes_block = completes_block}));
  NSA_RETURN_IF_ERROR(EnqueueHead(exec, work, 0, 1));
  return cuda::CopyBytes(exec.stream, sequence.logits(), work.logits.data, LogitBytes(1));
}

// Enqueues the tokens of a sequence whose inputs are on the GPU.
absl::Status GpuDecoder::EnqueueRows(const Exec& exec, const Rows& rows) {
  const std::ptrdiff_t count = std::ssize(rows.doc_start);
  const DecodeWork& work = rows.work;
  NSA_RETURN_IF_ERROR(
      Embedding(exec, {.rows = count,
                       .vocab = config_.vocab,
                       .dim = config_.dim,
                       .tokens = ConstTensor(work.tokens.data, count, DType::kI32),
                       .table = Weight(places_.embed),
                       .y = Tensor(work.x.data, count * config_.dim, work.x.dtype)}));
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    NSA_RETURN_IF_ERROR(
        Annotate(BlockRows(exec, {.config = config_,
                                  .attention = config_.AttentionOf(layer),
                                  .places = places_.blocks[layer],
                                  .parameters = parameters_,
                                  .work = work,
                                  .cache = memory_.cache(rows.slot, layer),
                                  .completes_block = rows.completes_block,
                                  .first = rows.first,
                                  .doc_start = rows.doc_start,
                                  .keys_read = memory_.keys_read(rows.slot, layer)}),
                 absl::StrCat("decode: block ", layer)));
  }
  return absl::OkStatus();
}

// Enqueues the logits after `rows` rows of the residual stream, from row `first` on.
absl::Status GpuDecoder::EnqueueHead(const Exec& exec, const DecodeWork& work, int64_t first,
                                     int64_t rows) {
  const int64_t dim = config_.dim;
  const auto* const x =
      static_cast<const std::byte*>(work.x.data) + first * dim * SizeOf(work.x.dtype);
  return LinearRows(exec, {.shape = {rows, dim, config_.vocab},
                           .x = ConstTensor(x, rows * dim, work.x.dtype),
                           .norm = Weight(places_.norm_f),
                           .eps = config_.attention.norm_eps,
                           .normalized = work.h,
                           .w = Weight(places_.head),
                           .y = work.logits});
}

// The same after rows of the workspace, fetched.
absl::StatusOr<std::span<const float>> GpuDecoder::Head(int64_t first, int64_t rows) {
  const DecodeWork& work = memory_.work();
  NSA_RETURN_IF_ERROR(EnqueueHead(exec_, work, first, rows));
  fetched_.resize(static_cast<size_t>(rows * config_.vocab));
  NSA_RETURN_IF_ERROR(
      cuda::CopyBytes(exec_.stream, fetched_.data(), work.logits.data, LogitBytes(rows)));
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec_.stream));
  logits_.resize(fetched_.size());
  ToFloats(fetched_, logits_.data());
  return logits_;
}

}  // namespace nsa::train
