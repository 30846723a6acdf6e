#include "worker/train/data/stream/stream_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nsa::train {

StreamRows::StreamRows(Options options)
    : options_(std::move(options)),
      documents_(options_.plan, options_.source, options_.windows.seed, options_.progress.get()),
      windows_(options_.windows) {}

absl::Status StreamRows::Seek(int64_t row, std::span<const v1::StreamPosition> windows) {
  const v1::StreamPosition& window = windows.front();
  const StreamPlace place = PlaceOf(window);
  if (window.sequence() < 0 || window.sequence() > row || place.token < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data cursor: token %d of a document, a window from row %d on (must be from 0 to row %d); "
        "start again in another train.out_dir",
        place.token, window.sequence(), row));
  }
  NSA_RETURN_IF_ERROR(documents_.Seek(place));
  windows_.Begin(place, window.sequence());
  if (place.token > 0) resumed_ = place;
  whole_epoch_ = place.file == 0 && place.document == 0 && place.token == 0;
  epoch_ = place.epoch;
  return absl::OkStatus();
}

std::vector<SourceMark> StreamRows::Marks(int64_t /*row*/) const {
  return {{PositionOf(windows_.place(), windows_.first_row()), windows_.passed_epoch()}};
}

absl::Status StreamRows::ReadOn() {
  if (failed_.ok()) failed_ = ReadDocument();
  return failed_;
}

absl::Status StreamRows::ReadDocument() {
  StreamPlace place;
  NSA_ASSIGN_OR_RETURN(const Document* const document, documents_.Next(&place));
  if (document == nullptr) return EndEpoch();
  if (resumed_) {
    StreamPlace wanted = *std::exchange(resumed_, std::nullopt);
    const int64_t token = std::exchange(wanted.token, 0);
    if (!(place == wanted)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: document %d where the checkpoint has document %d; restore the old files",
          document->place, place.document, wanted.document));
    }
    place.token = token;
  }
  return AppendDocument(*document, place);
}

// The tokens from place.token on.
absl::Status StreamRows::AppendDocument(const Document& document, StreamPlace place) {
  int64_t left_out = std::exchange(place.token, 0);
  const auto append = [&](std::span<const Token> tokens) {
    const int64_t skipped = std::min(left_out, std::ssize(tokens));
    left_out -= skipped;
    place.token += skipped;
    tokens = tokens.subspan(static_cast<size_t>(skipped));
    windows_.Append(tokens, place);
    place.token += std::ssize(tokens);
    return absl::OkStatus();
  };
  NSA_ASSIGN_OR_RETURN(const DocumentEncoder::Encoded encoded,
                       options_.plan->encoder->Encode(document, append, options_.progress.get()));
  epoch_tokens_ += encoded.tokens;
  if (left_out == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: %d tokens where the checkpoint has more; restore the old files",
                      document.place, encoded.tokens));
}

absl::Status StreamRows::EndEpoch() {
  const int32_t least = options_.windows.seq_len + 1;
  if (whole_epoch_ && epoch_tokens_ < least) {
    NSA_RETURN_IF_ERROR(CheckFilter(input().files, documents_.tally()));
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d tokens for training (at least train.seq_len + 1 = %d); add text or use a smaller "
        "train.seq_len",
        input().files.field, epoch_tokens_, least));
  }
  windows_.EndEpoch();
  whole_epoch_ = true;
  epoch_tokens_ = 0;
  ended_ = options_.one_epoch;
  return absl::OkStatus();
}

// Frees the rows before `row` and reads until those before `complete` can be read.
absl::Status StreamRows::GoTo(int64_t row, int64_t complete) {
  if (row < windows_.passed()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("row %d of a stream that is at row %d", row, windows_.passed()));
  }
  while (true) {
    windows_.PassTo(std::min(row, windows_.complete()));
    if (windows_.complete() >= complete) return absl::OkStatus();
    if (ended_) {
      return absl::OutOfRangeError(absl::StrFormat("row %d (%d rows)", row, windows_.complete()));
    }
    NSA_RETURN_IF_ERROR(ReadOn());
  }
}

absl::Status StreamRows::Read(int64_t row, std::span<int32_t> tokens) {
  NSA_RETURN_IF_ERROR(GoTo(row, row + 1));
  // An error of the next window is of no concern to this one.
  while (!ended_ && failed_.ok() && windows_.WantsMore(row)) ReadOn().IgnoreError();
  epoch_ = windows_.Read(row, tokens);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StreamRows::RowsUpTo(int64_t wanted) {
  while (!ended_ && windows_.appended() < wanted) NSA_RETURN_IF_ERROR(ReadOn());
  return windows_.appended();
}

absl::Status StreamRows::PassTo(int64_t row) { return GoTo(row, row); }

}  // namespace nsa::train
