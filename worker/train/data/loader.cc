#include "worker/train/data/loader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/job/data/conversations.h"
#include "common/job/data/data_files.h"
#include "common/job/data_source.h"
#include "common/job/enum_words.h"
#include "worker/train/data/read/source_files.h"
#include "worker/train/data/stream/held_out.h"
#include "worker/train/data/synthetic.h"

namespace nsa::train {
namespace {

BatchShape ShapeFor(const LoaderOptions& options) {
  const v1::TrainSpec& train = options.spec.train();
  BatchShape shape;
  shape.seq_len = train.seq_len();
  shape.batch_size = train.batch_size();
  shape.rank = options.rank / options.context;
  shape.world_size = options.world_size / options.context;
  shape.context = options.context;
  shape.part = options.rank % options.context;
  shape.vocab = options.vocab;
  shape.seed = train.seed();
  shape.document_mask = options.spec.data().document_mask();
  return shape;
}

// As many rows for training, and as many after them for validation.
std::shared_ptr<RowSource> GeneratedRows(const LoaderOptions& options, v1::DataSource source,
                                         bool validation) {
  return MakeGeneratedRows(source, options.spec.train().seed(), options.vocab, kEndlessRows,
                           validation ? kEndlessRows : 0);
}

CorpusInfo GeneratedInfo(const LoaderOptions& options, v1::DataSource source) {
  CorpusInfo info;
  info.source = source;
  info.fingerprint = absl::StrFormat(
      "%s-seed-%d-vocab-%d", EnumWord(*v1::DataSource_descriptor()->FindValueByNumber(source)),
      options.spec.train().seed(), options.vocab);
  return info;
}

absl::Status CheckOptions(const LoaderOptions& options) {
  const v1::TrainSpec& train = options.spec.train();
  if (train.seq_len() < 1 || options.vocab < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data loader: train.seq_len %d, vocabulary %d (at least 1)",
                        train.seq_len(), options.vocab));
  }
  const int32_t context = options.context;
  if (context < 1 || options.world_size % context != 0 || train.seq_len() % context != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "resources.context_parallel: %d (must divide the %d ranks and train.seq_len = %d); "
        "choose another",
        context, options.world_size, train.seq_len()));
  }
  if (const int32_t groups = options.world_size / context;
      train.batch_size() < 1 || train.batch_size() % groups != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "train.batch_size: %d (must be a multiple of the %d %s); change one of them",
        train.batch_size(), groups, context == 1 ? "ranks" : "groups of ranks"));
  }
  return absl::OkStatus();
}

// Whether there are rows enough to train and to validate.
absl::Status CheckRows(const LoaderOptions& options, const RowSource& train, const RowSource* val,
                       const CorpusInfo& info) {
  const v1::TrainSpec& spec = options.spec.train();
  const v1::DataSpec& data = options.spec.data();
  if (train.rows() < 1) return TooFewTokens("data.path", info.tokens, spec.seq_len());
  if (val != nullptr && val->rows() < 1) {
    if (!data.val_path().empty()) {
      return TooFewTokens("data.val_path", info.val_tokens, spec.seq_len());
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.val_fraction: %g holds out %d of %d tokens (at least train.seq_len + 1 = %d); set a "
        "larger val_fraction, name files in data.val_path, or use a smaller train.seq_len",
        data.val_fraction(), info.val_tokens, info.tokens + info.val_tokens, spec.seq_len() + 1));
  }
  const int64_t step_rows =
      int64_t{1} * spec.batch_size() * std::max(1, spec.accumulate_grad_batches());
  if (data.on_exhausted() != v1::ON_EXHAUSTED_STOP || train.rows() >= step_rows) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("data.path: %d rows of %d tokens (a step takes %d, and data.on_exhausted "
                      "is stop); add text or use a smaller batch",
                      train.rows(), spec.seq_len(), step_rows));
}

}  // namespace

DataLoader::DataLoader(LoaderOptions options, LoadedRows rows, CorpusInfo info)
    : options_(std::move(options)),
      shape_(ShapeFor(options_)),
      train_(std::move(rows.train)),
      info_(std::move(info)),
      fingerprint_(info_.fingerprint),
      marks_(train_->Marks(0)) {
  info_.rows = train_->counted_rows();
  BatchShape shape = shape_;
  shape.validation = true;
  for (auto& [name, set] : rows.sets) sets_.push_back({name, BatchMaker(shape, std::move(set))});
  if (rows.val == nullptr) return;
  info_.val_rows = rows.val->rows();
  eval_.emplace(shape, std::move(rows.val));
}

// Every later batch is synthetic.
void DataLoader::FallBack(const absl::Status& why) {
  fell_back_ = true;
  train_ = GeneratedRows(options_, v1::DATA_SOURCE_SYNTHETIC, false);
  prefetcher_.reset();
  spdlog::warn("data: the run continues on synthetic tokens: {}", std::string(why.message()));
  if (options_.on_fallback) options_.on_fallback(std::string(why.message()));
}

absl::Status DataLoader::Seek(const v1::DataCursor& cursor) {
  if (prefetcher_) return absl::FailedPreconditionError("data loader: Seek() after Next()");
  if (!fell_back_ && cursor.fingerprint() != info_.fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrFormat("data: the files changed since the checkpoint was written (fingerprint %s, "
                        "checkpoint %s); restore the old files, or start again in another "
                        "train.out_dir",
                        info_.fingerprint, cursor.fingerprint()));
  }
  if (cursor.epoch() < 0 || cursor.sequence() < 0) {
    return absl::InvalidArgumentError("data cursor: negative position");
  }
  NSA_RETURN_IF_ERROR(SeekWindows(cursor));
  fingerprint_ = cursor.fingerprint();
  position_ = Advance({cursor.epoch(), cursor.sequence()}, 0, train_->rows());
  return absl::OkStatus();
}

// After a fallback the windows are only kept: they are written again.
absl::Status DataLoader::SeekWindows(const v1::DataCursor& cursor) {
  const std::vector<v1::StreamPosition> windows(cursor.stream().begin(), cursor.stream().end());
  if (fell_back_) {
    marks_.clear();
    for (const v1::StreamPosition& window : windows) marks_.push_back({window});
    return absl::OkStatus();
  }
  const auto wanted =
      std::ranges::count_if(marks_, [](const SourceMark& mark) { return mark.window.has_value(); });
  if (std::ssize(windows) != wanted) {
    return absl::FailedPreconditionError(
        absl::StrFormat("data cursor: windows of %d streams (must be %d); start again in another "
                        "train.out_dir",
                        windows.size(), wanted));
  }
  absl::Status status;
  for (int i = 0; status.ok() && i < cursor.stream_size(); ++i) {
    if (windows[static_cast<size_t>(i)].source() == i) continue;
    status = absl::InvalidArgumentError(
        absl::StrFormat("data cursor: a window of source %d in the place of source %d",
                        windows[static_cast<size_t>(i)].source(), i));
  }
  if (status.ok()) status = train_->Seek(cursor.sequence(), windows);
  if (!status.ok()) {  // the job may go on from the beginning of the data
    train_->Seek(0, std::vector<v1::StreamPosition>(windows.size())).IgnoreError();
  }
  marks_ = train_->Marks(status.ok() ? cursor.sequence() : 0);
  return status;
}

absl::StatusOr<Batch> DataLoader::Next() {
  while (true) {
    absl::StatusOr<Prefetcher::Item> item =
        prefetcher().Next(LoaderTimeout(options_.spec.data()), options_.on_progress);
    if (item.ok()) {
      position_ = item->after;
      if (!fell_back_) marks_ = std::move(item->marks);
      micro_step_ = (micro_step_ + 1) % micro_steps();
      return std::move(item->batch);
    }
    const bool may_fall_back = options_.spec.data().allow_synthetic_fallback() && !fell_back_;
    if (!may_fall_back || absl::IsOutOfRange(item.status())) return item.status();
    FallBack(item.status());
  }
}

v1::DataCursor DataLoader::cursor() const {
  v1::DataCursor cursor;
  cursor.set_epoch(position_.epoch);
  cursor.set_sequence(position_.sequence);
  cursor.set_fingerprint(fingerprint_);
  cursor.mutable_hub_commits()->insert(options_.hub_commits.begin(), options_.hub_commits.end());
  for (const SourceMark& mark : marks_) {
    if (mark.window) *cursor.add_stream() = *mark.window;
  }
  return cursor;
}

bool DataLoader::exhausted() {
  if (fell_back_ || !stops_at_end()) return false;
  return prefetcher().Exhausted(LoaderTimeout(options_.spec.data()), options_.on_progress);
}

absl::StatusOr<Batch> DataLoader::Eval(int32_t index) const {
  if (!eval_) return absl::OutOfRangeError("validation without validation data");
  return EvalOf(*eval_, index);
}

int64_t DataLoader::mix_epoch(int32_t source) const {
  const auto at = static_cast<size_t>(source);
  return fell_back_ || at >= marks_.size() ? 0 : marks_[at].epoch;
}

int32_t DataLoader::micro_steps() const {
  return std::max<int32_t>(1, options_.spec.train().accumulate_grad_batches());
}

bool DataLoader::stops_at_end() const {
  return options_.spec.data().on_exhausted() == v1::ON_EXHAUSTED_STOP;
}

int32_t DataLoader::BatchesOf(const BatchMaker& rows) const {
  const int64_t whole = std::max<int64_t>(1, rows.rows() / shape_.batch_size);
  return static_cast<int32_t>(std::min<int64_t>(whole, options_.spec.train().eval_batches()));
}

absl::StatusOr<Batch> DataLoader::EvalOf(const BatchMaker& rows, int32_t index) const {
  if (index < 0 || index >= BatchesOf(rows)) {
    return absl::OutOfRangeError(
        absl::StrFormat("validation batch %d (%d batches)", index, BatchesOf(rows)));
  }
  NSA_ASSIGN_OR_RETURN(Batch batch, rows.Make({0, int64_t{index} * shape_.batch_size}));
  batch.epoch = 0;
  return batch;
}

// Which begins to read when it is first asked for.
Prefetcher& DataLoader::prefetcher() {
  if (!prefetcher_) {
    prefetcher_.emplace(PrefetchOptions{.start = position_,
                                        .micro_step = micro_step_,
                                        .micro_steps = micro_steps(),
                                        .batch_size = shape_.batch_size,
                                        .stop_at_end = stops_at_end()},
                        BatchMaker(shape_, train_));
  }
  return *prefetcher_;
}

absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::Open(LoaderOptions options) {
  NSA_RETURN_IF_ERROR(CheckOptions(options));
  const v1::DataSpec& data = options.spec.data();
  if (LearnsAnswers(data) && (data.stream() || !data.mix().empty())) {
    return absl::InvalidArgumentError(
        "data.loss_on: assistant (not with data.mix or data.stream); list the files in data.path");
  }
  if (data.mix().empty() && !DataSourceInfoOf(data.source()).has_files()) {
    auto train = GeneratedRows(options, data.source(), false);
    auto val = GeneratedRows(options, data.source(), true);
    CorpusInfo info = GeneratedInfo(options, train->source());
    return FromRows(std::move(options), std::move(train), std::move(val), std::move(info));
  }
  NSA_ASSIGN_OR_RETURN(std::shared_ptr<Remote> remote,
                       RemoteFor(data, options.allowed_urls, options.hub_commits));
  HeldOutNeed need = HeldOutNeedOf(options.spec.train());
  need.fingerprint = options.fingerprint;
  absl::StatusOr<Corpus> corpus =
      LoadCorpus(data, options.vocab, LoaderTimeout(data), options.on_progress, options.cancelled,
                 remote, options.cache, need);
  if (!corpus.ok()) {
    const bool stopped = ReasonOf(corpus.status()) == Reason::kStopped;
    if (stopped || !data.allow_synthetic_fallback()) return corpus.status();
    return FallenBack(std::move(options), corpus.status());
  }
  NSA_ASSIGN_OR_RETURN(LoadedRows rows, SplitCorpus(options.spec, options.vocab, *corpus, remote));
  NSA_RETURN_IF_ERROR(CheckRows(options, *rows.train, rows.val.get(), corpus->info));
  corpus->info.packing = rows.packing;
  if (const v1::CorpusSummary summary = SummaryOf(corpus->info); PacksBadly(summary)) {
    const std::string text = absl::StrCat(PackingText(summary), "; use a larger train.seq_len");
    spdlog::warn("data: {}", text);
    corpus->info.notes.push_back({Reason::kPacking, text});
  }
  return std::unique_ptr<DataLoader>(
      new DataLoader(std::move(options), std::move(rows), std::move(corpus->info)));
}

// Validation is collective, so a rank that could not read its files must validate exactly when the
// ranks that could do, and on as many sets.
absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::FallenBack(LoaderOptions options,
                                                                   const absl::Status& why) {
  const v1::DataSpec& data = options.spec.data();
  LoadedRows rows;
  rows.train = GeneratedRows(options, v1::DATA_SOURCE_SYNTHETIC, false);
  const auto val = GeneratedRows(options, v1::DATA_SOURCE_SYNTHETIC, true);
  if (data.val_path_size() > 0 || data.val_fraction() > 0) rows.val = val;
  for (const DataFiles& set : NamedValidationFiles(data)) rows.sets.emplace_back(set.name, val);
  CorpusInfo info = GeneratedInfo(options, v1::DATA_SOURCE_SYNTHETIC);
  std::unique_ptr<DataLoader> loader(
      new DataLoader(std::move(options), std::move(rows), std::move(info)));
  loader->FallBack(why);
  return loader;
}

absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::FromRows(LoaderOptions options,
                                                                 std::shared_ptr<RowSource> train,
                                                                 std::shared_ptr<RowSource> val,
                                                                 CorpusInfo info) {
  NSA_RETURN_IF_ERROR(CheckOptions(options));
  NSA_RETURN_IF_ERROR(CheckRows(options, *train, val.get(), info));
  LoadedRows rows = {.train = std::move(train), .val = std::move(val)};
  return std::unique_ptr<DataLoader>(
      new DataLoader(std::move(options), std::move(rows), std::move(info)));
}

}  // namespace nsa::train
