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

}  // namespace

absl::StatusOr<std::unique_ptr<GpuDecoder>> GpuDecoder::Create(const Exec& exec,
                                                               const v1::JobSpec& spec,
                                                               const Arena* parameters,
                                                               const DecoderOptions& options) {
  NSA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(spec, options.context, Backend::kCuda));
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
      memory_(config, Backend::kCuda, options.separator.has_value()),
      documents_(options.separator) {}

absl::Status GpuDecoder::Allocate() {
  NSA_RETURN_IF_ERROR(memory_.Allocate());
  const int64_t bytes = static_cast<int64_t>(sizeof(DecodeInputs)) + LogitBytes(1);
  NSA_ASSIGN_OR_RETURN(of_one_row_, cuda::PinnedMemory::Allocate(bytes, "one token of decoding"));
  return absl::OkStatus();
}

void GpuDecoder::Reset() {
  memory_.Clear();
  position_ = 0;
  documents_.Clear();
  clear_keys_read_ = true;
}

absl::StatusOr<std::span<const float>> GpuDecoder::Prefill(std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(CheckTokens(tokens, position_, context(), config_.vocab));
  while (true) {
    const std::span<const int32_t> rows =
        tokens.first(std::min(tokens.size(), static_cast<size_t>(kDecodeRows)));
    tokens = tokens.subspan(rows.size());
    if (IsGraph(rows)) return RunGraph(rows);  // the last one
    NSA_RETURN_IF_ERROR(ReadRows(rows));
    if (tokens.empty()) return Head(static_cast<int64_t>(rows.size()) - 1, 1);
  }
}

absl::StatusOr<std::span<const float>> GpuDecoder::PrefillEach(std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(CheckEach(tokens, position_, context(), config_.vocab));
  if (IsGraph(tokens)) return RunGraph(tokens);
  NSA_RETURN_IF_ERROR(ReadRows(tokens));
  return Head(0, static_cast<int64_t>(tokens.size()));
}

absl::StatusOr<std::array<int64_t, kBranches>> GpuDecoder::keys_read(int32_t layer) const {
  std::array<int64_t, kBranches> keys = {};
  if (clear_keys_read_) return keys;
  NSA_RETURN_IF_ERROR(
      cuda::CopyBytes(exec_.stream, keys.data(), KeysRead(layer).data, sizeof(keys)));
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec_.stream));
  return keys;
}

Tensor GpuDecoder::KeysRead(int32_t layer) const {
  return {memory_.work().keys_read.as<int64_t>().data() + int64_t{layer} * kBranches, kBranches,
          DType::kI64};
}

// Makes room for the tokens in the caches and returns what the kernels read of them.
absl::StatusOr<DecodeInputs> GpuDecoder::Append(std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(memory_.Append(exec_, static_cast<int64_t>(tokens.size())));
  if (tokens.size() == 1 && CompletesBlock()) NSA_RETURN_IF_ERROR(memory_.AppendBlock(exec_));
  if (clear_keys_read_) {
    const Tensor& counters = memory_.work().keys_read;
    NSA_RETURN_IF_ERROR(cuda::ZeroBytes(exec_.stream, counters.data,
                                        counters.size * static_cast<int64_t>(sizeof(int64_t))));
    clear_keys_read_ = false;
  }
  DecodeInputs inputs = {};
  inputs.at[0] = static_cast<int32_t>(position_);
  std::ranges::copy(memory_.begins(), inputs.at + 1);
  std::ranges::copy(tokens, inputs.tokens);
  std::ranges::copy(documents_.Of(tokens, position_), inputs.doc_start);
  return inputs;
}

// Up to how many tokens the kernels serve that are enqueued for the next one: twice as many as
// there are, at most.
int64_t GpuDecoder::PlannedTokens() const {
  const auto tokens = static_cast<uint64_t>(std::max(position_ + 1, kDecodeRows));
  return std::min<int64_t>(context(), static_cast<int64_t>(std::bit_ceil(tokens)));
}

// Enqueues at most kDecodeRows tokens through all blocks.
absl::Status GpuDecoder::ReadRows(std::span<const int32_t> tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  NSA_ASSIGN_OR_RETURN(const DecodeInputs inputs, Append(tokens));
  NSA_RETURN_IF_ERROR(
      cuda::CopyBytes(exec_.stream, memory_.work().inputs.data, &inputs, sizeof(inputs)));
  const std::span starts(inputs.doc_start, tokens.size());
  if (rows == 1) {
    OneRow& one_row = one_row_[CompletesBlock()];
    one_row.ran = PlannedTokens();
    NSA_RETURN_IF_ERROR(EnqueueRows(starts, one_row.ran - 1, CompletesBlock()));
  } else {
    NSA_RETURN_IF_ERROR(EnqueueRows(starts, position_, false));
  }
  position_ += rows;
  return absl::OkStatus();
}

// Whether the next token completes a compression block.
bool GpuDecoder::CompletesBlock() const {
  const NsaLayerConfig& attention = config_.attention;
  return (attention.has(kCmp) || attention.has(kSel)) &&
         train::CompletesBlock(attention.shape, position_ + 1);
}

// Whether the tokens are one that has a graph.
bool GpuDecoder::IsGraph(std::span<const int32_t> tokens) const {
  return tokens.size() == 1 && position_ < one_row_[CompletesBlock()].ran;
}

// Runs the graph of one token and returns the logits after it.
absl::StatusOr<std::span<const float>> GpuDecoder::RunGraph(std::span<const int32_t> token) {
  auto* const inputs = static_cast<DecodeInputs*>(of_one_row_.data());
  auto* const logits = reinterpret_cast<uint16_t*>(inputs + 1);
  const bool completes_block = CompletesBlock();
  OneRow& one_row = one_row_[completes_block];
  NSA_ASSIGN_OR_RETURN(*inputs, Append(token));  // nothing reads it: every call waits for its graph
  if (position_ >= one_row.planned) {
    NSA_ASSIGN_OR_RETURN(one_row.graph, cuda::Graph::Capture(exec_.stream, [&] {
                           return EnqueueGraph(*inputs, one_row.ran - 1, completes_block, logits);
                         }));
    one_row.planned = one_row.ran;
  }
  NSA_RETURN_IF_ERROR(one_row.graph.Launch(exec_.stream));
  ++position_;
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec_.stream));
  return ToLogits({logits, static_cast<size_t>(config_.vocab)});
}

// All work of one token, with the copies from and to pinned memory.
absl::Status GpuDecoder::EnqueueGraph(const DecodeInputs& inputs, int64_t last,
                                      bool completes_block, uint16_t* logits) {
  const DecodeWork& work = memory_.work();
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec_.stream, work.inputs.data, &inputs, sizeof(inputs)));
  NSA_RETURN_IF_ERROR(EnqueueRows(std::span(inputs.doc_start, 1), last, completes_block));
  NSA_RETURN_IF_ERROR(EnqueueHead(0, 1));
  return cuda::CopyBytes(exec_.stream, logits, work.logits.data, LogitBytes(1));
}

// Enqueues the tokens whose inputs are on the GPU. `first` is the last position that the first of
// them may have.
absl::Status GpuDecoder::EnqueueRows(std::span<const int32_t> starts, int64_t first,
                                     bool completes_block) {
  const auto rows = static_cast<int64_t>(starts.size());
  const DecodeWork& work = memory_.work();
  NSA_RETURN_IF_ERROR(
      Embedding(exec_, {.rows = rows,
                        .vocab = config_.vocab,
                        .dim = config_.dim,
                        .tokens = ConstTensor(work.tokens.data, rows, DType::kI32),
                        .table = Weight(places_.embed),
                        .y = Tensor(work.x.data, rows * config_.dim, work.x.dtype)}));
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    NSA_RETURN_IF_ERROR(Annotate(BlockRows(exec_, {.config = config_,
                                                   .attention = config_.AttentionOf(layer),
                                                   .places = places_.blocks[layer],
                                                   .parameters = parameters_,
                                                   .work = work,
                                                   .cache = memory_.cache(layer),
                                                   .completes_block = completes_block,
                                                   .first = first,
                                                   .doc_start = starts,
                                                   .keys_read = KeysRead(layer)}),
                                 absl::StrCat("decode: block ", layer)));
  }
  return absl::OkStatus();
}

// Enqueues the logits after `rows` rows of the residual stream, from row `first` on.
absl::Status GpuDecoder::EnqueueHead(int64_t first, int64_t rows) {
  const DecodeWork& work = memory_.work();
  const int64_t dim = config_.dim;
  const auto* const x =
      static_cast<const std::byte*>(work.x.data) + first * dim * SizeOf(work.x.dtype);
  return LinearRows(exec_, {.shape = {rows, dim, config_.vocab},
                            .x = ConstTensor(x, rows * dim, work.x.dtype),
                            .norm = Weight(places_.norm_f),
                            .eps = config_.attention.norm_eps,
                            .normalized = work.h,
                            .w = Weight(places_.head),
                            .y = work.logits});
}

// The same, fetched.
absl::StatusOr<std::span<const float>> GpuDecoder::Head(int64_t first, int64_t rows) {
  NSA_RETURN_IF_ERROR(EnqueueHead(first, rows));
  fetched_.resize(static_cast<size_t>(rows * config_.vocab));
  NSA_RETURN_IF_ERROR(
      cuda::CopyBytes(exec_.stream, fetched_.data(), memory_.work().logits.data, LogitBytes(rows)));
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec_.stream));
  return ToLogits(fetched_);
}

std::span<const float> GpuDecoder::ToLogits(std::span<const uint16_t> fetched) {
  logits_.resize(fetched.size());
  std::ranges::transform(fetched, logits_.begin(), FromBf16);
  return logits_;
}

}  // namespace nsa::train
