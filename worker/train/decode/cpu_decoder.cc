#include "worker/train/decode/cpu_decoder.h"

#include <omp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/nn/embedding.h"
#include "worker/train/decode/block_rows.h"
#include "worker/train/decode/checks.h"
#include "worker/train/decode/linear_rows.h"

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

}  // namespace

absl::StatusOr<std::unique_ptr<CpuDecoder>> CpuDecoder::Create(const Exec& exec,
                                                               const v1::JobSpec& spec,
                                                               const Arena* parameters,
                                                               const DecoderOptions& options) {
  NSA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(spec, options, Backend::kCpu));
  std::unique_ptr<CpuDecoder> decoder(new CpuDecoder(exec, config, options, parameters));
  NSA_RETURN_IF_ERROR(decoder->memory_.Allocate());
  return decoder;
}

CpuDecoder::CpuDecoder(const Exec& exec, const ModelConfig& config, const DecoderOptions& options,
                       const Arena* parameters)
    : exec_(exec),
      config_(config),
      parameters_(*parameters),
      places_(ModelPlaces::Of(parameters->layout(), config.n_layers)),
      memory_(config, Backend::kCpu, {.slots = options.slots}),
      rotation_(config.attention),
      sequences_(
          options.slots,
          Sequence{.documents = DocumentStarts(options.separator),
                   .keys_read = std::vector<std::array<int64_t, kBranches>>(config.n_layers)}) {}

void CpuDecoder::Reset(int32_t slot) {
  memory_.Clear(slot);
  Sequence& sequence = sequences_[slot];
  sequence.position = 0;
  sequence.documents.Clear();
  sequence.keys_read.assign(sequence.keys_read.size(), {});
}

absl::StatusOr<std::span<const float>> CpuDecoder::Prefill(int32_t slot,
                                                           std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(CheckTokens(tokens, this->tokens(slot), context(), config_.vocab));
  while (true) {
    const std::span<const int32_t> rows =
        tokens.first(std::min(tokens.size(), static_cast<size_t>(kDecodeRows)));
    tokens = tokens.subspan(rows.size());
    const OneThread one(rows.size() == 1 && parameters_.layout().count() < kParametersForThreads);
    NSA_RETURN_IF_ERROR(ReadRows(slot, rows));
    if (!tokens.empty()) continue;
    NSA_RETURN_IF_ERROR(Head(static_cast<int64_t>(rows.size()) - 1, 1, memory_.work().logits));
    return memory_.work().logits.as<const float>();
  }
}

absl::StatusOr<std::span<const float>> CpuDecoder::PrefillEach(int32_t slot,
                                                               std::span<const int32_t> tokens) {
  NSA_RETURN_IF_ERROR(CheckEach(tokens, this->tokens(slot), context(), config_.vocab));
  const auto rows = static_cast<int64_t>(tokens.size());
  each_.resize(static_cast<size_t>(kMostRows * config_.vocab));
  NSA_RETURN_IF_ERROR(ReadRows(slot, tokens));
  const Tensor logits(each_.data(), rows * config_.vocab, DType::kF32);
  NSA_RETURN_IF_ERROR(Head(0, rows, logits));
  return logits.as<const float>();
}

// Runs at most kDecodeRows tokens of a sequence through all blocks.
absl::Status CpuDecoder::ReadRows(int32_t slot, std::span<const int32_t> tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const DecodeWork& work = memory_.work();
  Sequence& sequence = sequences_[slot];
  const std::span<const int32_t> starts = sequence.documents.Of(tokens, sequence.position);
  rotation_.SetPositions(sequence.position, rows);
  NSA_RETURN_IF_ERROR(
      Embedding(exec_, {.rows = rows,
                        .vocab = config_.vocab,
                        .dim = config_.dim,
                        .tokens = tokens,
                        .table = Weight(places_.embed),
                        .y = Tensor(work.x.data, rows * config_.dim, DType::kF32)}));
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    NSA_RETURN_IF_ERROR(
        Annotate(BlockRows(exec_, {.config = config_,
                                   .attention = config_.AttentionOf(layer),
                                   .places = places_.blocks[layer],
                                   .parameters = parameters_,
                                   .rotation = &rotation_,
                                   .work = work,
                                   .cache = memory_.cache(slot, layer),
                                   .first = sequence.position,
                                   .doc_start = starts,
                                   .keys_read = std::span<int64_t>(sequence.keys_read[layer])}),
                 absl::StrCat("decode: block ", layer)));
  }
  sequence.position += rows;
  return absl::OkStatus();
}

// The logits after `rows` rows of the residual stream, from row `first` on.
absl::Status CpuDecoder::Head(int64_t first, int64_t rows, const Tensor& logits) {
  const DecodeWork& work = memory_.work();
  const int64_t dim = config_.dim;
  return LinearRows(exec_, {.shape = {rows, dim, config_.vocab},
                            .x = work.x.as<const float>().subspan(first * dim, rows * dim),
                            .norm = Weight(places_.norm_f),
                            .eps = config_.attention.norm_eps,
                            .normalized = work.h,
                            .w = Weight(places_.head),
                            .y = logits});
}

}  // namespace nsa::train
