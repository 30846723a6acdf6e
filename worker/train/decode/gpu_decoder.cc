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
  NSA_RETURN_IF_ERROR(decoder->memory_.Allocate());
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
    NSA_RETURN_IF_ERROR(ReadRows(rows));
    if (tokens.empty()) return Head(static_cast<int64_t>(rows.size()) - 1, 1);
  }
}

absl::StatusOr<std::span<const float>> GpuDecoder::PrefillEach(std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(CheckEach(tokens, position_, context(), config_.vocab));
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

// Copies what the kernels read of the tokens, and where their documents begin, to the GPU.
absl::Status GpuDecoder::Upload(std::span<const int32_t> tokens, std::span<const int32_t> starts) {
  const DecodeWork& work = memory_.work();
  const auto bytes = static_cast<int64_t>(tokens.size_bytes());
  const std::array<int32_t, kBranches> begins = memory_.begins();
  const std::array<int32_t, 1 + kBranches> at = {static_cast<int32_t>(position_), begins[0],
                                                 begins[1], begins[2]};
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec_.stream, work.at.data, at.data(), sizeof(at)));
  if (work.doc_start.wanted()) {
    NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec_.stream, work.doc_start.data, starts.data(), bytes));
  }
  if (clear_keys_read_) {
    NSA_RETURN_IF_ERROR(
        cuda::ZeroBytes(exec_.stream, work.keys_read.data,
                        work.keys_read.size * static_cast<int64_t>(sizeof(int64_t))));
    clear_keys_read_ = false;
  }
  return cuda::CopyBytes(exec_.stream, work.tokens.data, tokens.data(), bytes);
}

// Enqueues at most kDecodeRows tokens through all blocks.
absl::Status GpuDecoder::ReadRows(std::span<const int32_t> tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const std::span<const int32_t> starts = documents_.Of(tokens, position_);
  NSA_RETURN_IF_ERROR(memory_.Append(exec_, rows));
  NSA_RETURN_IF_ERROR(Upload(tokens, starts));
  if (rows == 1 && ran_one_row_ && !CompletesBlock()) {
    NSA_RETURN_IF_ERROR(LaunchOneRow(starts));
  } else {
    NSA_RETURN_IF_ERROR(EnqueueRows(starts, position_));
    ran_one_row_ = ran_one_row_ || rows == 1;
  }
  position_ += rows;
  return absl::OkStatus();
}

// Whether the next token completes a block, whose place in the caches the host has to name.
bool GpuDecoder::CompletesBlock() const {
  const NsaLayerConfig& attention = config_.attention;
  return (attention.has(kCmp) || attention.has(kSel)) &&
         train::CompletesBlock(attention.shape, position_ + 1);
}

// Launches the graph of one token, captured for up to twice as many tokens as there are.
absl::Status GpuDecoder::LaunchOneRow(std::span<const int32_t> starts) {
  if (position_ >= planned_) {
    const auto tokens = static_cast<uint64_t>(std::max(position_ + 1, kDecodeRows));
    const auto planned = std::min<int64_t>(context(), static_cast<int64_t>(std::bit_ceil(tokens)));
    NSA_ASSIGN_OR_RETURN(one_row_, cuda::Graph::Capture(exec_.stream, [&] {
                           return EnqueueRows(starts, planned - 1);
                         }));
    planned_ = planned;
  }
  return one_row_.Launch(exec_.stream);
}

// Enqueues the tokens that Upload() has copied. `first` is the last position that the first of them
// may have.
absl::Status GpuDecoder::EnqueueRows(std::span<const int32_t> starts, int64_t first) {
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
                                                   .first = first,
                                                   .doc_start = starts,
                                                   .keys_read = KeysRead(layer)}),
                                 absl::StrCat("decode: block ", layer)));
  }
  return absl::OkStatus();
}

// The logits after `rows` rows of the residual stream, from row `first` on.
absl::StatusOr<std::span<const float>> GpuDecoder::Head(int64_t first, int64_t rows) {
  const DecodeWork& work = memory_.work();
  const int64_t dim = config_.dim, size = rows * config_.vocab;
  const auto* const x =
      static_cast<const std::byte*>(work.x.data) + first * dim * SizeOf(work.x.dtype);
  NSA_RETURN_IF_ERROR(LinearRows(exec_, {.shape = {rows, dim, config_.vocab},
                                         .x = ConstTensor(x, rows * dim, work.x.dtype),
                                         .norm = Weight(places_.norm_f),
                                         .normalized = work.h,
                                         .w = Weight(places_.head),
                                         .y = work.logits}));
  fetched_.resize(static_cast<size_t>(size));
  logits_.resize(static_cast<size_t>(size));
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec_.stream, fetched_.data(), work.logits.data,
                                      size * static_cast<int64_t>(sizeof(uint16_t))));
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec_.stream));
  std::ranges::transform(fetched_, logits_.begin(), FromBf16);
  return logits_;
}

}  // namespace nsa::train
