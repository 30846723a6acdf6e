// The data loader: decides which tokens a rank trains on and in which order, and keeps the position
// in that order.
//
// Documents are read once, into memory or, if there are many, into a cache on disk that all ranks
// map (corpus.h). Each starts with the separator token, and they follow each other without a gap.
// In epoch 0 row i of the corpus is its tokens [i·S, i·S + S], so every token is predicted exactly
// once; only an incomplete last row is left out. In later epochs all rows are cut a random number
// of tokens later (order.h, corpus.h). The order of the rows is a permutation. Both depend only on
// (seed, epoch): sequence q of epoch e is the same row for any number of ranks. A
// micro-batch is the next batch_size sequences; rank r of W takes rows [r·B/W, (r+1)·B/W) of it.
// Ranks that share rows (resources.context_parallel) count as one, and each takes its part of every
// row's tokens.
//
// With data.stream the training files are read in passing instead: stream/windows.h says which rows
// that gives and stream/document_stream.h in which order. Sequence q is again the same row for any
// number of ranks. The position is the number of sequences, in epoch 0, and for each source the
// place in the files where the window of its next row begins, from which a start reads on.
//
// With data.mix sequence q is of the source that has that turn (mix.h), and every source has
// epochs, an order and a shift of its own. The position is the number of sequences, in epoch 0.
//
// One thread calls Next() and Eval(); a thread of the loader prepares batches in advance.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data/url.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/batches.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/prefetch.h"
#include "worker/train/data/rows.h"
#include "worker/train/data/split.h"

namespace nsa::train {

// The loader uses spec.data, spec.train and spec.model.vocab, with their defaults filled in.
struct LoaderOptions {
  v1::JobSpec spec;
  int32_t rank = 0;
  int32_t world_size = 1;
  // N ranks in a row share their rows: this one gives part `rank` modulo N of each row's tokens. N
  // divides world_size and train.seq_len.
  int32_t context = 1;
  int32_t vocab = 0;  // no token at or above it is ever returned
  // The URLs that may be read (common/job/data/url_policy.h); without any, only local files.
  std::vector<std::string> allowed_urls;
  // The commits at which branches of the Hub are read. Cursors have them.
  HubCommits hub_commits;
  // Where the tokens of large data are kept (prepared/token_cache.h). By default nowhere: all data
  // is held in memory.
  TokenCacheOptions cache = {};
  // Of the checkpoint that the run continues from, if it is known: HeldOutNeed.fingerprint.
  std::string fingerprint = {};
  // Called once, on the caller's thread, with the reason when the loader changes to synthetic
  // tokens.
  std::function<void(const std::string&)> on_fallback;
  // Called on the caller's thread about once a second while Open() makes progress, and while Next()
  // waits for a stream that does.
  std::function<void()> on_progress;
  // Called on the caller's thread while Open() reads files. Once it returns true, Open() returns
  // Cancelled with Reason::kStopped within a fraction of a second. Empty: never cancelled.
  std::function<bool()> cancelled;
};

class DataLoader {
 public:
  // Reads the files and separates training from validation documents; slow for large files. Errors
  // name the file and the line: NotFound; InvalidArgument (not what `source` expects, fewer than S
  // + 1 tokens, or with on_exhausted: stop fewer rows than one step takes); DataLoss (a damaged
  // archive); DeadlineExceeded with Reason::kDataStalled (no byte for loader_timeout_seconds). With
  // allow_synthetic_fallback these errors are not returned: on_fallback is called and every batch
  // is synthetic.
  static absl::StatusOr<std::unique_ptr<DataLoader>> Open(LoaderOptions options);

  // Like Open(), but takes the rows instead of reading files: for tests and generated sources.
  // `val` may be null: no validation.
  static absl::StatusOr<std::unique_ptr<DataLoader>> FromRows(LoaderOptions options,
                                                              std::shared_ptr<RowSource> train,
                                                              std::shared_ptr<RowSource> val,
                                                              CorpusInfo info);
  // Continues from a saved position. FailedPrecondition if the data is not that of the cursor. Must
  // be called before the first Next().
  absl::Status Seek(const v1::DataCursor& cursor);

  // The next micro-batch of this rank. With on_exhausted: stop, OutOfRange with
  // Reason::kDataExhausted at the first micro-batch of a step for which too few rows are left.
  // All ranks get this error at the same step, so no step is done by some ranks only.
  // DeadlineExceeded with
  // Reason::kDataStalled after loader_timeout_seconds.
  absl::StatusOr<Batch> Next();

  // Whether too few rows are left for another step, with on_exhausted: stop. Call it between steps.
  // Always false after a fallback. It waits for the next batch, as Next() does; false if it waits
  // in vain.
  bool exhausted();

  // The position after the last batch that Next() returned, also after a fallback.
  v1::DataCursor cursor() const;

  // Validation: the same batches every time, from documents that are not in the training set. Batch
  // i has rows [i·B, i·B + B) of the validation set, B = train.batch_size, so that runs with other
  // seeds or numbers of ranks validate on the same rows. There are at most train.eval_batches;
  // fewer if the set is small, and 0 without one. A set smaller than one batch is repeated to fill
  // it.
  int32_t eval_batches() const { return eval_ ? BatchesOf(*eval_) : 0; }
  absl::StatusOr<Batch> Eval(int32_t index) const;

  // The same for the sets of data.val, in the order of their names.
  int32_t eval_sets() const { return static_cast<int32_t>(sets_.size()); }
  const std::string& eval_set_name(int32_t set) const { return sets_[set].name; }
  int32_t eval_set_batches(int32_t set) const { return BatchesOf(sets_[set].rows); }
  absl::StatusOr<Batch> EvalSet(int32_t set, int32_t index) const {
    return EvalOf(sets_[set].rows, index);
  }

  // With data.mix: the epoch in which a source was for its last row, 0-based; 0 after a fallback.
  int64_t mix_epoch(int32_t source) const;

  const CorpusInfo& info() const { return info_; }

  // Whether the loader fell back to synthetic tokens. StepRecord.fallbacks counts each synthetic
  // batch as "data_source".
  bool fell_back() const { return fell_back_; }

 private:
  // A set of data.val.
  struct Set {
    std::string name;
    BatchMaker rows;
  };

  DataLoader(LoaderOptions options, LoadedRows rows, CorpusInfo info);
  static absl::StatusOr<std::unique_ptr<DataLoader>> FallenBack(LoaderOptions options,
                                                                const absl::Status& why);
  void FallBack(const absl::Status& why);
  absl::Status SeekWindows(const v1::DataCursor& cursor);
  int32_t micro_steps() const;
  bool stops_at_end() const;
  int32_t BatchesOf(const BatchMaker& rows) const;
  absl::StatusOr<Batch> EvalOf(const BatchMaker& rows, int32_t index) const;
  Prefetcher& prefetcher();

  const LoaderOptions options_;
  const BatchShape shape_;
  std::shared_ptr<RowSource> train_;
  CorpusInfo info_;
  std::string fingerprint_;  // written into cursors: that of the files, even after a fallback
  std::optional<BatchMaker> eval_;
  std::vector<Set> sets_;
  std::optional<Prefetcher> prefetcher_;
  DataPosition position_;
  std::vector<SourceMark> marks_;  // of the training data at this position
  int32_t micro_step_ = 0;
  bool fell_back_ = false;
};

}  // namespace nsa::train
