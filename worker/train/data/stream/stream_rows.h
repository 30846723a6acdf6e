// The rows of a source that is read in passing (data.stream).
//
// Each rank reads and tokenizes the whole source, keeps the rows of a window (windows.h), and reads
// those of its share. Each row consumed from this window makes room for one row of the next, so a
// rank waits for a whole window only at the start, and holds no more rows than the larger of two
// windows plus one document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/data/rows.h"
#include "worker/train/data/stream/document_stream.h"
#include "worker/train/data/stream/plan.h"
#include "worker/train/data/stream/windows.h"

namespace nsa::train {

// Row q is sequence q of the source, over all epochs. Rows must be asked for in order; some may be
// left out. The first error of a file is returned once no complete window is left, by all ranks at
// the same row, and then again and again.
class StreamRows final : public RowSource {
 public:
  struct Options {
    std::shared_ptr<const StreamPlan> plan;
    size_t source = 0;  // index in plan->sources
    std::shared_ptr<ReadProgress> progress;
    Windows::Options windows;
    bool one_epoch = false;  // on_exhausted: stop
  };
  explicit StreamRows(Options options);

  int64_t rows() const override { return kEndlessRows; }
  int64_t counted_rows() const override { return 0; }
  bool in_order() const override { return true; }
  int32_t separator() const override { return options_.plan->encoder->separator_or_none(); }
  v1::DataSource source() const override { return input().files.source; }

  // A window that is not of this data may also be a FailedPrecondition of a later read.
  absl::Status Seek(int64_t row, std::span<const v1::StreamPosition> windows) override;

  // Errors: those of DocumentStream and DocumentEncoder; InvalidArgument for data of fewer than S +
  // 1 tokens; OutOfRange behind the last row.
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override;
  absl::StatusOr<int64_t> RowsUpTo(int64_t wanted) override;
  absl::Status PassTo(int64_t row) override;
  std::vector<SourceMark> Marks(int64_t row) const override;

  std::optional<int64_t> epoch() const override { return epoch_; }
  int64_t progress() const override { return options_.progress->bytes; }
  void Cancel() override { options_.progress->cancelled = true; }

 private:
  const StreamSource& input() const { return options_.plan->sources[options_.source]; }
  absl::Status GoTo(int64_t row, int64_t complete);
  absl::Status ReadOn();
  absl::Status ReadDocument();
  absl::Status AppendDocument(const Document& document, StreamPlace place);
  absl::Status EndEpoch();

  const Options options_;
  DocumentStream documents_;
  Windows windows_;
  std::optional<StreamPlace> resumed_;  // until its document has been read
  bool whole_epoch_ = true;             // this epoch is read from its beginning
  int64_t epoch_tokens_ = 0;            // read of this epoch
  bool ended_ = false;                  // no row follows those that were appended
  absl::Status failed_;                 // what ended the reading
  int64_t epoch_ = 0;                   // of the row that was read last
};

}  // namespace nsa::train
