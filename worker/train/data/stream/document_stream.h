// The training documents of one source, epoch after epoch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/data/order.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/stream/place.h"
#include "worker/train/data/stream/plan.h"

namespace nsa::train {

// In each epoch the files come in an order of their own, a permutation that depends only on (seed,
// epoch); the documents of a file come in its order. Memory: that of a DocumentReader. One thread
// at a time.
class DocumentStream {
 public:
  // `source` is an index in plan->sources, which has a file; `progress` must outlive the object.
  DocumentStream(std::shared_ptr<const StreamPlan> plan, size_t source, int64_t seed,
                 ReadProgress* progress);

  // Goes to a place, that of its document. InvalidArgument if there is no such file.
  absl::Status Seek(const StreamPlace& place);

  // The next document that trains, valid until the next call, and the place of its first token;
  // null at the end of an epoch, after which the next one begins. Errors: those of DocumentReader
  // and CheckUnchanged().
  absl::StatusOr<const Document*> Next(StreamPlace* place);

  // Passed since the start: documents that are held out or dropped, rows without a text, and files
  // of 0 bytes.
  int64_t held_out() const { return held_out_; }
  int64_t dropped() const { return dropped_; }
  int64_t nulls() const { return nulls_; }
  int64_t empty_files() const { return empty_files_; }
  // What the filter has met in the files that were read to their end.
  const FilterTally& tally() const { return tally_; }

 private:
  const StreamFile& file() const;

  const std::shared_ptr<const StreamPlan> plan_;
  const StreamSource& source_;
  const RowOrder order_;
  ReadProgress* const progress_;
  StreamPlace place_;  // of the reader; its document is where the reader begins
  std::optional<DocumentReader> reader_;
  Document document_;
  int64_t held_out_ = 0;
  int64_t dropped_ = 0;
  int64_t nulls_ = 0;
  int64_t empty_files_ = 0;
  FilterTally tally_;
};

}  // namespace nsa::train
