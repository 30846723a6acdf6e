#include "worker/train/data/stream/count.h"

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/split.h"
#include "worker/train/data/stream/document_stream.h"
#include "worker/train/data/stream/held_out.h"
#include "worker/train/data/stream/plan.h"

namespace nsa::train {
namespace {

// An epoch of a source.
absl::Status CountSource(const std::shared_ptr<const StreamPlan>& plan, size_t source,
                         int32_t seq_len, ReadProgress* progress, CorpusInfo* info) {
  DocumentStream documents(plan, source, /*seed=*/0, progress);
  int64_t tokens = 0;
  StreamPlace place;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const Document* const document, documents.Next(&place));
    if (document == nullptr) break;
    const auto nothing = [](std::span<const Token>) { return absl::OkStatus(); };
    NSA_ASSIGN_OR_RETURN(const DocumentEncoder::Encoded encoded,
                         plan->encoder->Encode(*document, nothing, progress));
    tokens += encoded.tokens;
    ++info->documents;
  }
  info->dropped_documents += documents.dropped();
  info->null_rows += documents.nulls();
  info->empty_files += documents.empty_files();
  info->tokens += tokens;
  const DataFiles& files = plan->sources[source].files;
  NSA_RETURN_IF_ERROR(CheckFilter(files, documents.tally()));
  for (v1::DataWarning& warning : FilterWarnings(files, documents.tally())) {
    info->warnings.push_back(std::move(warning));
  }
  if (tokens <= seq_len) return TooFewTokens(files.field, tokens, seq_len);
  info->rows += (tokens - 1) / seq_len;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::CorpusSummary> CountStream(const v1::JobSpec& spec,
                                              const std::shared_ptr<Remote>& remote,
                                              const TokenCacheOptions& cache) {
  NSA_ASSIGN_OR_RETURN(
      Corpus corpus,
      LoadCorpus(spec.data(), VocabOf(spec), absl::Seconds(spec.data().loader_timeout_seconds()),
                 {}, {}, remote, cache, HeldOutNeedOf(spec.train())));
  ReadProgress progress;
  progress.remote = remote;
  const int32_t seq_len = spec.train().seq_len();
  for (size_t i = 0; i < corpus.parts.size(); ++i) {
    NSA_RETURN_IF_ERROR(CountSource(corpus.stream, i, seq_len, &progress, &corpus.info));
    const int64_t val_tokens = corpus.parts[i].val->size();
    if (val_tokens > 0) corpus.info.val_rows += (val_tokens - 1) / seq_len;
  }
  return SummaryOf(corpus.info);
}

}  // namespace nsa::train
