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
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data/url.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/rows.h"

namespace nsa::train {

// One rank's share of a micro-batch, row-major.
struct Batch {
  int32_t rows = 0;
  int32_t seq_len = 0;             // S/N: S, or with LoaderOptions::context the tokens of its part
  std::vector<int32_t> tokens;     // [rows, S/N]
  std::vector<int32_t> targets;    // [rows, S/N]: the next token
  std::vector<int32_t> doc_start;  // [rows, S], of all tokens: the first position of the row that
                                   // belongs to the token's document; empty without
                                   // data.document_mask. The separator belongs to the document that
                                   // it begins.
  v1::DataSource source = v1::DATA_SOURCE_UNSPECIFIED;  // SYNTHETIC after a fallback
  int64_t epoch = 0;           // of its first row, 0-based; 0 with data.mix
  std::vector<int32_t> parts;  // with data.mix: the source of each row, an index in it
};

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
  ~DataLoader();

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
  // Always false after a fallback. With data.stream it waits for the next batch, as Next() does;
  // false if it waits in vain.
  bool exhausted();

  // The position after the last batch that Next() returned, also after a fallback.
  v1::DataCursor cursor() const;

  // Validation: the same batches every time, from documents that are not in the training set. Batch
  // i has rows [i·B, i·B + B) of the validation set, B = train.batch_size, so that runs with other
  // seeds or numbers of ranks validate on the same rows. There are at most train.eval_batches;
  // fewer if the set is small, and 0 without one. A set smaller than one batch is repeated to fill
  // it.
  int32_t eval_batches() const;
  absl::StatusOr<Batch> Eval(int32_t index) const;

  // The same for the sets of data.val, in the order of their names.
  int32_t eval_sets() const;
  const std::string& eval_set_name(int32_t set) const;
  int32_t eval_set_batches(int32_t set) const;
  absl::StatusOr<Batch> EvalSet(int32_t set, int32_t index) const;

  // With data.mix: the epoch in which a source was for its last row, 0-based; 0 after a fallback.
  int64_t mix_epoch(int32_t source) const;

  const CorpusInfo& info() const;

  // Whether the loader fell back to synthetic tokens. StepRecord.fallbacks counts each synthetic
  // batch as "data_source".
  bool fell_back() const;

 private:
  class Impl;
  static absl::StatusOr<std::unique_ptr<DataLoader>> FallenBack(LoaderOptions options,
                                                                const absl::Status& why);
  explicit DataLoader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa::train
