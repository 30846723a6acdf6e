#include "worker/train/data/stream/held_out.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

// Looks through one source.
class Search {
 public:
  Search(const StreamPlan& plan, int64_t wanted, ReadProgress* progress, HeldShards* held,
         CorpusPart* part, CorpusInfo* info)
      : plan_(plan), wanted_(wanted), progress_(progress), held_(held), part_(part), info_(info) {}

  absl::Status Run(const StreamSource& source) {
    for (const StreamFile& file : source.listed) {
      DocumentReader reader(plan_.OptionsFor(source, file), progress_);
      while (!done()) {
        NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document_));
        if (!found) break;
        NSA_RETURN_IF_ERROR(Look());
      }
      if (done()) break;
    }
    return absl::OkStatus();
  }

  int64_t documents() const { return documents_; }

 private:
  bool done() const { return part_->val->size() >= wanted_ || bytes_ >= kMostLookedThrough; }

  absl::Status Look() {
    ++documents_;
    bytes_ += std::ssize(document_.text) +
              std::ssize(document_.tokens) * static_cast<int64_t>(sizeof(Token));
    if (plan_.FateOf(HashOf(document_)) != StreamPlan::Fate::kHeldOut) return absl::OkStatus();
    ++info_->val_documents;
    NSA_ASSIGN_OR_RETURN(const HeldShards::Held held,
                         held_->Encode(document_, *plan_.encoder, progress_));
    part_->val->Append(held.document.shard, held.document.begin, held.document.end);
    return absl::OkStatus();
  }

  const StreamPlan& plan_;
  const int64_t wanted_;  // tokens
  ReadProgress* const progress_;
  HeldShards* const held_;
  CorpusPart* const part_;
  CorpusInfo* const info_;
  Document document_;
  int64_t documents_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace

HeldOutNeed HeldOutNeedOf(const v1::TrainSpec& train) {
  const int64_t batches = train.eval_every() > 0 ? train.eval_batches() : 0;
  return {.rows = batches * train.batch_size(), .seq_len = train.seq_len()};
}

absl::Status FindHeldOut(const StreamPlan& plan, const HeldOutNeed& need, ReadProgress* progress,
                         HeldShards* held, Corpus* corpus) {
  double weights = 0;
  for (const CorpusPart& part : corpus->parts) weights += part.weight;
  int64_t tokens = 0, documents = 0;
  for (size_t i = 0; i < plan.sources.size(); ++i) {
    CorpusPart& part = corpus->parts[i];
    // A mixture gives a source at most one turn more than its share.
    const bool mixed = plan.sources.size() > 1;
    const auto share =
        static_cast<int64_t>(std::ceil(static_cast<double>(need.rows) * part.weight / weights));
    const int64_t rows = mixed ? share + 1 : need.rows;
    Search search(plan, rows * need.seq_len + 1, progress, held, &part, &corpus->info);
    NSA_RETURN_IF_ERROR(search.Run(plan.sources[i]));
    tokens += part.val->size();
    documents += search.documents();
    const int64_t found = (part.val->size() - 1) / need.seq_len;
    if (found < rows) {
      spdlog::info("data: {}: {} rows of held-out documents ({} wanted) in the first {} documents",
                   plan.sources[i].files.field, std::max<int64_t>(found, 0), rows,
                   search.documents());
    }
  }
  if (tokens > need.seq_len) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "data.val_fraction: %g holds out %d tokens in the first %d documents (a row takes %d); use a "
      "larger one, or data.val_path",
      plan.val_fraction, tokens, documents, need.seq_len + 1));
}

}  // namespace nsa::train
