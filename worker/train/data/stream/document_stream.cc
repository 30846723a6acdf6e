#include "worker/train/data/stream/document_stream.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "worker/train/data/random.h"
#include "worker/train/data/read/document_hash.h"

namespace nsa::train {
namespace {

constexpr uint64_t kFilesKey = 0x66696c6573;  // apart from the keys of other uses of the seed

}  // namespace

DocumentStream::DocumentStream(std::shared_ptr<const StreamPlan> plan, size_t source, int64_t seed,
                               ReadProgress* progress)
    : plan_(std::move(plan)),
      source_(plan_->sources[source]),
      order_(static_cast<int64_t>(Mix(static_cast<uint64_t>(seed), kFilesKey)),
             std::ssize(source_.listed)),
      progress_(progress) {}

absl::Status DocumentStream::Seek(const StreamPlace& place) {
  if (place.epoch < 0 || place.file < 0 || place.file >= order_.rows() || place.document < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data cursor: file %d, document %d of epoch %d (%d files); the checkpoint "
                        "is of other data",
                        place.file, place.document, place.epoch, order_.rows()));
  }
  place_ = place;
  reader_.reset();
  return absl::OkStatus();
}

const StreamFile& DocumentStream::file() const {
  return source_.listed[static_cast<size_t>(order_.Row(place_.epoch, place_.file))];
}

absl::StatusOr<const Document*> DocumentStream::Next(StreamPlace* place) {
  while (place_.file < order_.rows()) {
    if (!reader_) {
      NSA_RETURN_IF_ERROR(CheckUnchanged(file()));
      reader_.emplace(plan_->OptionsFor(source_, file()), progress_);
      reader_->SkipTo(place_.document);
    }
    NSA_ASSIGN_OR_RETURN(const bool found, reader_->Next(&document_));
    if (!found) {
      NSA_RETURN_IF_ERROR(CheckUnchanged(file()));
      nulls_ += reader_->nulls();
      empty_files_ += reader_->empty_files();
      tally_.Add(reader_->tally());
      reader_.reset();
      place_.document = 0;
      ++place_.file;
      continue;
    }
    const StreamPlan::Fate fate = plan_->FateOf(HashOf(document_));
    if (fate == StreamPlan::Fate::kTrains) {
      *place = {place_.epoch, place_.file, document_.index, 0};
      return &document_;
    }
    ++(fate == StreamPlan::Fate::kHeldOut ? held_out_ : dropped_);
  }
  place_ = {.epoch = place_.epoch + 1};
  return nullptr;
}

}  // namespace nsa::train
