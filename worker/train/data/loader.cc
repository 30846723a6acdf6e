#include "worker/train/data/loader.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data_source.h"
#include "common/job/enum_words.h"
#include "worker/train/data/batches.h"
#include "worker/train/data/mix.h"
#include "worker/train/data/prefetch.h"
#include "worker/train/data/read/source_files.h"
#include "worker/train/data/synthetic.h"

namespace nsa::train {
namespace {

// A generated source has this many rows for training, and as many after them for validation.
constexpr int64_t kEndlessRows = int64_t{1} << 40;

BatchShape ShapeFor(const LoaderOptions& options) {
  const v1::TrainSpec& train = options.spec.train();
  BatchShape shape;
  shape.seq_len = train.seq_len();
  shape.batch_size = train.batch_size();
  shape.rank = options.rank;
  shape.world_size = options.world_size;
  shape.vocab = options.vocab;
  shape.seed = train.seed();
  shape.document_mask = options.spec.data().document_mask();
  return shape;
}

absl::Duration Timeout(const v1::DataSpec& data) {
  const double seconds = data.loader_timeout_seconds();
  return seconds > 0 ? absl::Seconds(seconds) : absl::Seconds(60);
}

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
  if (train.batch_size() < 1 || train.batch_size() % options.world_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("train.batch_size: %d (a multiple of the %d ranks); change one of them",
                        train.batch_size(), options.world_size));
  }
  return absl::OkStatus();
}

absl::Status TooFewTokens(std::string_view field, int64_t tokens, int32_t seq_len) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %d tokens (at least train.seq_len + 1 = %d); add text or use a smaller train.seq_len",
      field, tokens, seq_len + 1));
}

// Whether there are rows enough to train and to validate.
absl::Status CheckRows(const LoaderOptions& options, const RowSource& train, const RowSource* val,
                       const CorpusInfo& info) {
  const v1::TrainSpec& spec = options.spec.train();
  const v1::DataSpec& data = options.spec.data();
  if (train.rows() < 1) return TooFewTokens("data.path", info.tokens, spec.seq_len());
  if (val != nullptr && val->rows() < 1) {
    return TooFewTokens(data.val_path().empty() ? "data.val_fraction" : "data.val_path",
                        info.val_tokens, spec.seq_len());
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

// The rows that a loader gives.
struct LoadedRows {
  std::shared_ptr<RowSource> train;
  std::shared_ptr<MixedRows> mix;  // the same, with data.mix
  std::shared_ptr<RowSource> val;  // null without validation
  std::vector<std::pair<std::string, std::shared_ptr<RowSource>>> sets;
};

// Turns a corpus into rows.
class CorpusSplitter {
 public:
  CorpusSplitter(const LoaderOptions& options, const Corpus& corpus)
      : options_(options), corpus_(corpus), mixed_(!options.spec.data().mix().empty()) {}

  absl::StatusOr<LoadedRows> Rows() const {
    LoadedRows rows;
    for (const CorpusSet& set : corpus_.sets) {
      auto one = RowsOf(set.tokens, v1::DATA_SOURCE_TEXT);
      if (one->rows() < 1) return TooFew(absl::StrCat("data.val.", set.name), *set.tokens);
      rows.sets.emplace_back(set.name, std::move(one));
    }
    const CorpusPart& first = corpus_.parts.front();
    if (mixed_) {
      NSA_ASSIGN_OR_RETURN(rows.mix, MixedTraining());
      rows.train = rows.mix;
      NSA_ASSIGN_OR_RETURN(rows.val, MixedValidation());
    } else {
      rows.train = RowsOf(first.train, first.source);
      if (first.val->size() > 0) rows.val = RowsOf(first.val, first.source);
    }
    return rows;
  }

 private:
  std::shared_ptr<CorpusRows> RowsOf(std::shared_ptr<TokenStore> store,
                                     v1::DataSource source) const {
    return std::make_shared<CorpusRows>(std::move(store), seq_len(), corpus_.separator, source);
  }

  int32_t seq_len() const { return options_.spec.train().seq_len(); }

  absl::Status TooFew(const std::string& field, const TokenStore& store) const {
    return TooFewTokens(field, store.size(), seq_len());
  }

  MixedRows::Options Empty(bool in_order) const {
    return {.seq_len = seq_len(), .seed = options_.spec.train().seed(), .in_order = in_order};
  }

  absl::StatusOr<std::shared_ptr<MixedRows>> MixedTraining() const {
    MixedRows::Options mix = Empty(/*in_order=*/false);
    mix.rows = kEndlessRows;
    std::vector<double> weights;
    for (const CorpusPart& part : corpus_.parts) {
      mix.sources.push_back(RowsOf(part.train, part.source));
      weights.push_back(part.weight);
      if (mix.sources.back()->rows() >= 1) continue;
      return TooFew(absl::StrCat("data.mix: ", part.name), *part.train);
    }
    MixSchedule schedule(weights);
    for (int32_t i = 0; i < schedule.sources(); ++i) {
      if (schedule.share(i) > 0) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.mix[%d].weight: %g is less than one in 1,000 sequences; give it a larger one", i,
          weights[static_cast<size_t>(i)]));
    }
    return std::make_shared<MixedRows>(std::move(mix), std::move(schedule));
  }

  // The held-out documents of the sources in the same proportions. Sources that hold out less than
  // a row are left out; one that holds out little repeats it.
  absl::StatusOr<std::shared_ptr<RowSource>> MixedValidation() const {
    MixedRows::Options mix = Empty(/*in_order=*/true);
    std::vector<double> weights;
    if (corpus_.info.val_tokens == 0) return nullptr;
    for (const CorpusPart& part : corpus_.parts) {
      auto rows = RowsOf(part.val, part.source);
      if (rows->rows() < 1) continue;
      mix.rows += rows->rows();
      mix.sources.push_back(std::move(rows));
      weights.push_back(part.weight);
    }
    if (weights.empty()) {
      return TooFewTokens("data.mix: validation", corpus_.info.val_tokens, seq_len());
    }
    return std::make_shared<MixedRows>(std::move(mix), MixSchedule(weights));
  }

  const LoaderOptions& options_;
  const Corpus& corpus_;
  const bool mixed_;
};

}  // namespace

class DataLoader::Impl {
 public:
  Impl(LoaderOptions options, LoadedRows rows, CorpusInfo info)
      : options_(std::move(options)),
        shape_(ShapeFor(options_)),
        train_(std::move(rows.train)),
        mix_(std::move(rows.mix)),
        info_(std::move(info)),
        fingerprint_(info_.fingerprint) {
    if (mix_ == nullptr) info_.rows = train_->rows();
    BatchShape shape = shape_;
    shape.in_order = true;
    shape.mixed = false;
    for (auto& [name, set] : rows.sets) sets_.push_back({name, BatchMaker(shape, std::move(set))});
    if (rows.val == nullptr) return;
    info_.val_rows = rows.val->rows();
    eval_.emplace(shape, std::move(rows.val));
  }

  // Every later batch is synthetic.
  void FallBack(const absl::Status& why) {
    fell_back_ = true;
    mix_ = nullptr;
    train_ = GeneratedRows(options_, v1::DATA_SOURCE_SYNTHETIC, false);
    prefetcher_.reset();
    spdlog::warn("data: the run continues on synthetic tokens: {}", std::string(why.message()));
    if (options_.on_fallback) options_.on_fallback(std::string(why.message()));
  }

  absl::Status Seek(const v1::DataCursor& cursor) {
    if (prefetcher_) return absl::FailedPreconditionError("data loader: Seek() after Next()");
    if (!fell_back_ && cursor.fingerprint() != info_.fingerprint) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "data: the files changed since the checkpoint was written (fingerprint %s, "
          "checkpoint %s); restore the old files, or start again in another "
          "train.out_dir",
          info_.fingerprint, cursor.fingerprint()));
    }
    if (cursor.epoch() < 0 || cursor.sequence() < 0) {
      return absl::InvalidArgumentError("data cursor: negative position");
    }
    fingerprint_ = cursor.fingerprint();
    position_ = Advance({cursor.epoch(), cursor.sequence()}, 0, train_->rows());
    return absl::OkStatus();
  }

  absl::StatusOr<Batch> Next() {
    while (true) {
      if (!prefetcher_) StartPrefetcher();
      absl::StatusOr<Prefetcher::Item> item = prefetcher_->Next(Timeout(options_.spec.data()));
      if (item.ok()) {
        position_ = item->after;
        micro_step_ = (micro_step_ + 1) % micro_steps();
        return std::move(item->batch);
      }
      const bool may_fall_back = options_.spec.data().allow_synthetic_fallback() && !fell_back_;
      if (!may_fall_back || absl::IsOutOfRange(item.status())) return item.status();
      FallBack(item.status());
    }
  }

  v1::DataCursor cursor() const {
    v1::DataCursor cursor;
    cursor.set_epoch(position_.epoch);
    cursor.set_sequence(position_.sequence);
    cursor.set_fingerprint(fingerprint_);
    return cursor;
  }

  bool exhausted() const {
    const bool stops = options_.spec.data().on_exhausted() == v1::ON_EXHAUSTED_STOP;
    const int64_t needed = int64_t{1} * shape_.batch_size * micro_steps();
    return stops && !fell_back_ &&
           (position_.epoch > 0 || position_.sequence + needed > train_->rows());
  }

  int32_t eval_batches() const { return eval_ ? BatchesOf(*eval_) : 0; }
  absl::StatusOr<Batch> Eval(int32_t index) const {
    if (!eval_) return absl::OutOfRangeError("validation without validation data");
    return EvalOf(*eval_, index);
  }

  int32_t eval_sets() const { return static_cast<int32_t>(sets_.size()); }
  const std::string& eval_set_name(int32_t set) const { return sets_[set].name; }
  int32_t eval_set_batches(int32_t set) const { return BatchesOf(sets_[set].rows); }
  absl::StatusOr<Batch> EvalSet(int32_t set, int32_t index) const {
    return EvalOf(sets_[set].rows, index);
  }

  int64_t mix_epoch(int32_t source) const {
    return mix_ == nullptr ? 0 : mix_->EpochAfter(source, position_.sequence);
  }

  const CorpusInfo& info() const { return info_; }
  bool fell_back() const { return fell_back_; }

 private:
  // A set of data.val.
  struct Set {
    std::string name;
    BatchMaker rows;
  };

  int32_t micro_steps() const {
    return std::max<int32_t>(1, options_.spec.train().accumulate_grad_batches());
  }

  int32_t BatchesOf(const BatchMaker& rows) const {
    const int64_t whole = std::max<int64_t>(1, rows.rows() / shape_.batch_size);
    return static_cast<int32_t>(std::min<int64_t>(whole, options_.spec.train().eval_batches()));
  }

  absl::StatusOr<Batch> EvalOf(const BatchMaker& rows, int32_t index) const {
    if (index < 0 || index >= BatchesOf(rows)) {
      return absl::OutOfRangeError(
          absl::StrFormat("validation batch %d (%d batches)", index, BatchesOf(rows)));
    }
    NSA_ASSIGN_OR_RETURN(Batch batch, rows.Make({0, int64_t{index} * shape_.batch_size}));
    batch.epoch = 0;
    return batch;
  }

  void StartPrefetcher() {
    PrefetchOptions prefetch;
    prefetch.start = position_;
    prefetch.micro_step = micro_step_;
    prefetch.micro_steps = micro_steps();
    prefetch.batch_size = shape_.batch_size;
    prefetch.stop_at_end = options_.spec.data().on_exhausted() == v1::ON_EXHAUSTED_STOP;
    BatchShape shape = shape_;
    shape.mixed = shape.in_order = mix_ != nullptr;  // the mixture orders its rows itself
    prefetcher_.emplace(prefetch, BatchMaker(shape, train_));
  }

  const LoaderOptions options_;
  const BatchShape shape_;
  std::shared_ptr<RowSource> train_;
  std::shared_ptr<MixedRows> mix_;  // the same, with data.mix; null after a fallback
  CorpusInfo info_;
  std::string fingerprint_;  // written into cursors: that of the files, even after a fallback
  std::optional<BatchMaker> eval_;
  std::vector<Set> sets_;
  std::optional<Prefetcher> prefetcher_;
  DataPosition position_;
  int32_t micro_step_ = 0;
  bool fell_back_ = false;
};

DataLoader::DataLoader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DataLoader::~DataLoader() = default;

absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::Open(LoaderOptions options) {
  NSA_RETURN_IF_ERROR(CheckOptions(options));
  const v1::DataSpec& data = options.spec.data();
  if (data.mix().empty() && !DataSourceInfoOf(data.source()).has_files()) {
    auto train = GeneratedRows(options, data.source(), false);
    auto val = GeneratedRows(options, data.source(), true);
    CorpusInfo info = GeneratedInfo(options, train->source());
    return FromRows(std::move(options), std::move(train), std::move(val), std::move(info));
  }
  NSA_ASSIGN_OR_RETURN(std::shared_ptr<Remote> remote,
                       RemoteFor(data, options.allowed_urls, Timeout(data)));
  absl::StatusOr<Corpus> corpus =
      LoadCorpus(data, options.vocab, Timeout(data), options.on_progress, options.cancelled, remote,
                 options.cache);
  if (!corpus.ok()) {
    const bool stopped = ReasonOf(corpus.status()) == Reason::kStopped;
    if (stopped || !data.allow_synthetic_fallback()) return corpus.status();
    return FallenBack(std::move(options), corpus.status());
  }
  NSA_ASSIGN_OR_RETURN(LoadedRows rows, CorpusSplitter(options, *corpus).Rows());
  if (rows.mix != nullptr) {
    for (const CorpusPart& part : corpus->parts) {
      corpus->info.rows += (part.train->size() - 1) / options.spec.train().seq_len();
    }
  }
  NSA_RETURN_IF_ERROR(CheckRows(options, *rows.train, rows.val.get(), corpus->info));
  return std::unique_ptr<DataLoader>(new DataLoader(
      std::make_unique<Impl>(std::move(options), std::move(rows), std::move(corpus->info))));
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
  auto impl = std::make_unique<Impl>(std::move(options), std::move(rows), std::move(info));
  impl->FallBack(why);
  return std::unique_ptr<DataLoader>(new DataLoader(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::FromRows(LoaderOptions options,
                                                                 std::shared_ptr<RowSource> train,
                                                                 std::shared_ptr<RowSource> val,
                                                                 CorpusInfo info) {
  NSA_RETURN_IF_ERROR(CheckOptions(options));
  NSA_RETURN_IF_ERROR(CheckRows(options, *train, val.get(), info));
  LoadedRows rows = {.train = std::move(train), .val = std::move(val)};
  return std::unique_ptr<DataLoader>(
      new DataLoader(std::make_unique<Impl>(std::move(options), std::move(rows), std::move(info))));
}

absl::Status DataLoader::Seek(const v1::DataCursor& cursor) { return impl_->Seek(cursor); }
absl::StatusOr<Batch> DataLoader::Next() { return impl_->Next(); }
bool DataLoader::exhausted() const { return impl_->exhausted(); }
v1::DataCursor DataLoader::cursor() const { return impl_->cursor(); }
int32_t DataLoader::eval_batches() const { return impl_->eval_batches(); }
absl::StatusOr<Batch> DataLoader::Eval(int32_t index) const { return impl_->Eval(index); }
int32_t DataLoader::eval_sets() const { return impl_->eval_sets(); }
const std::string& DataLoader::eval_set_name(int32_t set) const {
  return impl_->eval_set_name(set);
}
int32_t DataLoader::eval_set_batches(int32_t set) const { return impl_->eval_set_batches(set); }
absl::StatusOr<Batch> DataLoader::EvalSet(int32_t set, int32_t index) const {
  return impl_->EvalSet(set, index);
}
int64_t DataLoader::mix_epoch(int32_t source) const { return impl_->mix_epoch(source); }
const CorpusInfo& DataLoader::info() const { return impl_->info(); }
bool DataLoader::fell_back() const { return impl_->fell_back(); }

}  // namespace nsa::train
