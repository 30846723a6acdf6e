// The data loader: which tokens a rank sees, in which order, and where it stands.
//
// Documents are read once into memory (a byte or two a token), each begun by the separator token
// and laid end to end. Row i of the corpus is its tokens [i·S, i·S + S], so that every token is
// predicted exactly once an epoch; nothing but the last ragged row is left out. The order of rows
// is a permutation that is a pure function of (seed, epoch): whatever the number of ranks, sequence
// q of epoch e is the same row. A micro-batch is the next batch_size sequences; rank r of W takes
// rows [r·B/W, (r+1)·B/W) of it.
//
// One thread calls Next() and Eval(); a thread of the loader's own makes batches ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/rows.h"

namespace nsa {

// One rank's share of a micro-batch. Row-major [rows, seq_len].
struct Batch {
  int32_t rows = 0;
  int32_t seq_len = 0;
  std::vector<int32_t> tokens;     // [rows, S]
  std::vector<int32_t> targets;    // [rows, S]: the token that follows
  std::vector<int32_t> doc_start;  // [rows, S]: the first position of the row that belongs to the
                                   // token's document; empty without data.document_mask. The
                                   // separator belongs to the document that it begins.
  v1::DataSource source = v1::DATA_SOURCE_UNSPECIFIED;  // SYNTHETIC after a fallback
  int64_t epoch = 0;                                    // of its first row, 0-based
};

// What the loader needs of a job: spec.data, spec.train and spec.model.vocab, with their defaults.
struct LoaderOptions {
  v1::JobSpec spec;
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t vocab = 0;  // no token at or above it is ever returned
  // Called once, on the caller's thread, when the loader turns to synthetic tokens: the reason.
  std::function<void(const std::string&)> on_fallback;
  // Called on the caller's thread about once a second while Open() reads and makes progress.
  std::function<void()> on_progress;
};

class DataLoader {
 public:
  // Reads the files and divides training from validation documents. Slow for large files. Errors
  // name file and line: NotFound, InvalidArgument (not what `source` says; fewer than S + 1 tokens,
  // or with on_exhausted: stop fewer rows than a step takes), DataLoss (a damaged archive),
  // DeadlineExceeded with DATA_STALLED in the text when no byte came for loader_timeout_seconds.
  // With allow_synthetic_fallback such an error is not returned: on_fallback is called and every
  // batch is synthetic.
  static absl::StatusOr<std::unique_ptr<DataLoader>> Open(LoaderOptions options);

  // The same over given rows (for tests, and for sources that are no files). `val` may be null.
  static absl::StatusOr<std::unique_ptr<DataLoader>> FromRows(LoaderOptions options,
                                                              std::shared_ptr<RowSource> train,
                                                              std::shared_ptr<RowSource> val,
                                                              CorpusInfo info);
  ~DataLoader();

  // Goes on from a saved position. FailedPrecondition when the corpus is not the one that the
  // cursor was taken in. To be called before the first Next().
  absl::Status Seek(const v1::DataCursor& cursor);

  // The next micro-batch of this rank. OutOfRange with DATA_EXHAUSTED in the text, with
  // on_exhausted: stop, at the first micro-batch of a step for which too few rows are left: every
  // rank gets it at the same step, and no step is ever half done. DeadlineExceeded with
  // DATA_STALLED in the text after loader_timeout_seconds.
  absl::StatusOr<Batch> Next();

  // Whether too few rows are left for another step, with on_exhausted: stop; between steps. Never
  // after a fallback.
  bool exhausted() const;

  // Behind the last batch that Next() returned.
  v1::DataCursor cursor() const;

  // Validation: the same batches every time, from documents that are not in the training set.
  // 0 batches when there is none. At most train.eval_batches, fewer when the set is small; a set
  // smaller than one batch is repeated within it.
  int32_t eval_batches() const;
  absl::StatusOr<Batch> Eval(int32_t index) const;

  const CorpusInfo& info() const;

  // True after a fallback to synthetic tokens. Count it as "data_source" in StepRecord.fallbacks:
  // one for each batch.
  bool fell_back() const;

 private:
  class Impl;
  explicit DataLoader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa
