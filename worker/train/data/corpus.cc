#include "worker/train/data/corpus.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/job/data_source.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {
namespace {

constexpr size_t kPassageBytes = 16 << 10;
constexpr absl::Duration kLook = absl::Milliseconds(100);  // between looks at a loading thread

using Hash = std::pair<uint64_t, uint64_t>;  // high, low of XXH3-128

Hash HashOf(const Document& document) {
  const XXH128_hash_t hash =
      document.tokens.empty()
          ? XXH3_128bits(document.text.data(), document.text.size())
          : XXH3_128bits(document.tokens.data(), document.tokens.size() * sizeof(uint16_t));
  return {hash.high64, hash.low64};
}

// A running hash of everything that was read.
class Fingerprint {
 public:
  Fingerprint() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  ~Fingerprint() { XXH3_freeState(state_); }
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;

  void AddFiles(const std::vector<std::filesystem::path>& files) {
    for (const std::filesystem::path& file : files) {
      std::error_code ignored;
      const std::string line = absl::StrCat(file.filename().string(), "\n",
                                            std::filesystem::file_size(file, ignored), "\n");
      XXH3_128bits_update(state_, line.data(), line.size());
    }
  }
  void Add(const Hash& hash) { XXH3_128bits_update(state_, &hash, sizeof(hash)); }
  std::string Hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  }

 private:
  XXH3_state_t* const state_;
};

// Builds a Corpus document by document.
class Builder {
 public:
  Builder(const v1::DataSpec& data, int32_t vocab, ReadProgress* progress)
      : data_(data), vocab_(vocab), progress_(progress) {}

  absl::StatusOr<Corpus> Build() {
    NSA_RETURN_IF_ERROR(ChooseSeparator());
    const bool wide = vocab_ > 256;
    corpus_.train = std::make_shared<TokenStore>(wide);
    corpus_.val = std::make_shared<TokenStore>(wide);
    corpus_.separator = separator_.value_or(kNoSeparator);
    corpus_.info.source = data_.source();
    if (corpus_.separator >= vocab_) return TooLarge("the document separator", corpus_.separator);
    if (corpus_.separator == kNoSeparator && data_.document_mask()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.document_mask: true, but there is no separator (document_mask needs "
                       "one); ",
                       std::string(kSetSeparator)));
    }
    NSA_RETURN_IF_ERROR(ReadValidation());
    NSA_RETURN_IF_ERROR(ReadTraining());
    if (corpus_.info.documents == 0) return NoTrainingDocuments();
    corpus_.info.tokens = corpus_.train->size();
    corpus_.info.val_tokens = corpus_.val->size();
    corpus_.info.fingerprint = fingerprint_.Hex();
    return std::move(corpus_);
  }

 private:
  // Where a training document is in the store, so that it can be moved to validation later.
  struct Place {
    Hash hash;
    int64_t begin;
    int64_t end;
  };

  // Sets `separator_`; nothing if only files that know their documents may be read. Makes the
  // tokenizer if there is one.
  absl::Status ChooseSeparator() {
    const bool tokens = DataSourceInfoOf(data_.source()).format == DocumentFormat::kTokens;
    if (data_.has_separator() && !tokens) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.separator: %s (only for data.source: tokens); remove it", data_.separator()));
    }
    if (data_.has_separator()) {
      NSA_ASSIGN_OR_RETURN(separator_, ParseSeparator(data_.separator()));
    } else if (!tokens || data_.tokenizer() != v1::TOKENIZER_UNSPECIFIED) {
      NSA_ASSIGN_OR_RETURN(tokenizer_, MakeTokenizer(data_));
      separator_ = tokenizer_->separator();
    }
    return absl::OkStatus();
  }

  double fraction() const { return data_.val_path().empty() ? data_.val_fraction() : 0.0; }

  DocumentReader Reader(const google::protobuf::RepeatedPtrField<std::string>& paths) {
    DocumentOptions options;
    options.source = data_.source();
    options.files.assign(paths.begin(), paths.end());
    options.separator = separator_;
    options.passage_bytes = fraction() > 0 ? kPassageBytes : 0;
    fingerprint_.AddFiles(options.files);
    return DocumentReader(std::move(options), progress_);
  }

  absl::Status ReadValidation() {
    if (data_.val_path().empty()) return absl::OkStatus();
    DocumentReader reader = Reader(data_.val_path());
    Document document;
    while (true) {
      NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
      if (!found) break;
      const Hash hash = HashOf(document);
      fingerprint_.Add(hash);
      val_hashes_.insert(hash);
      NSA_RETURN_IF_ERROR(Append(document, corpus_.val.get()));
      ++corpus_.info.val_documents;
    }
    if (corpus_.info.val_documents == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(data_.val_path(0), ": no document in data.val_path"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTraining() {
    DocumentReader reader = Reader(data_.path());
    Document document;
    std::optional<Place> lowest;
    while (true) {
      NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
      if (!found) break;
      const Hash hash = HashOf(document);
      fingerprint_.Add(hash);
      if (val_hashes_.count(hash) > 0) {
        ++corpus_.info.dropped_documents;
        continue;
      }
      const bool held_out = static_cast<double>(hash.second) < std::ldexp(fraction(), 64);
      const int64_t begin = corpus_.train->size();
      NSA_RETURN_IF_ERROR(Append(document, (held_out ? corpus_.val : corpus_.train).get()));
      ++(held_out ? corpus_.info.val_documents : corpus_.info.documents);
      if (!held_out && (!lowest || hash.second < lowest->hash.second)) {
        lowest = Place{hash, begin, corpus_.train->size()};
        copies_of_lowest_ = 1;
      } else if (!held_out && lowest && hash == lowest->hash) {
        ++copies_of_lowest_;
      }
    }
    if (fraction() > 0 && corpus_.info.val_documents == 0 && lowest) return HoldOut(*lowest);
    return absl::OkStatus();
  }

  // Moves one document to validation, because the fraction selected none.
  absl::Status HoldOut(const Place& place) {
    if (corpus_.info.documents < 2 || copies_of_lowest_ > 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data.val_fraction: %g holds out none of %d documents; use a larger one, "
                          "or data.val_path",
                          data_.val_fraction(), corpus_.info.documents));
    }
    corpus_.train->Move(place.begin, place.end, corpus_.val.get());
    --corpus_.info.documents;
    ++corpus_.info.val_documents;
    return absl::OkStatus();
  }

  absl::Status Append(const Document& document, TokenStore* store) {
    const bool separated = corpus_.separator != kNoSeparator;
    buffer_.assign(separated ? 1 : 0, static_cast<uint16_t>(corpus_.separator));
    if (document.tokens.empty()) {
      NSA_RETURN_IF_ERROR(tokenizer_->Encode(document.text, &buffer_, progress_));
    } else {
      buffer_.insert(buffer_.end(), document.tokens.begin(), document.tokens.end());
    }
    int32_t largest = 0;
    for (const uint16_t token : buffer_) largest = std::max<int32_t>(largest, token);
    if (largest >= vocab_) return TooLarge(document.place, largest);
    corpus_.info.inner_separators +=
        std::count(buffer_.begin(), buffer_.end(), corpus_.separator) - (separated ? 1 : 0);
    store->Append(buffer_);
    progress_->bytes += static_cast<int64_t>(buffer_.size());
    return absl::OkStatus();
  }

  absl::Status TooLarge(const std::string& place, int32_t token) const {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: token %d (model.vocab is %d); raise model.vocab or use the matching tokenizer", place,
        token, vocab_));
  }

  absl::Status NoTrainingDocuments() const {
    if (corpus_.info.dropped_documents > 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data.path: all %d documents are validation documents too; use other "
                          "files for data.val_path",
                          corpus_.info.dropped_documents));
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.path: no document for training (%d for validation); are the files empty?",
        corpus_.info.val_documents));
  }

  const v1::DataSpec& data_;
  const int32_t vocab_;
  ReadProgress* const progress_;
  std::unique_ptr<TextTokenizer> tokenizer_;  // null for token files with data.separator
  std::optional<int32_t> separator_;
  Corpus corpus_;
  Fingerprint fingerprint_;
  std::set<Hash> val_hashes_;
  int64_t copies_of_lowest_ = 0;
  std::vector<uint16_t> buffer_;
};

// Owned by both the reading thread and the waiting thread, because the latter may give up first.
struct Loading {
  ReadProgress progress;
  Mutex mutex;
  CondVar done;
  std::optional<absl::StatusOr<Corpus>> result ABSL_GUARDED_BY(mutex);
};

}  // namespace

v1::CorpusSummary SummaryOf(const CorpusInfo& info) {
  v1::CorpusSummary summary;
  summary.set_documents(info.documents);
  summary.set_dropped_documents(info.dropped_documents);
  summary.set_val_documents(info.val_documents);
  summary.set_tokens(info.tokens);
  summary.set_val_tokens(info.val_tokens);
  summary.set_rows(info.rows);
  summary.set_val_rows(info.val_rows);
  return summary;
}

void TokenStore::Append(std::span<const uint16_t> tokens) {
  for (const uint16_t token : tokens) {
    bytes_.push_back(static_cast<uint8_t>(token));
    if (width_ == 2) bytes_.push_back(static_cast<uint8_t>(token >> 8));
  }
}

void TokenStore::Copy(int64_t begin, std::span<int32_t> to) const {
  const uint8_t* from = bytes_.data() + begin * width_;
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = width_ == 1 ? from[i] : from[2 * i] | (from[2 * i + 1] << 8);
  }
}

void TokenStore::Move(int64_t begin, int64_t end, TokenStore* other) {
  const auto first = bytes_.begin() + begin * width_;
  const auto last = bytes_.begin() + end * width_;
  other->bytes_.insert(other->bytes_.end(), first, last);
  bytes_.erase(first, last);
}

absl::StatusOr<Corpus> LoadCorpus(const v1::DataSpec& data, int32_t vocab,
                                  absl::Duration stall_timeout,
                                  const std::function<void()>& on_progress,
                                  const std::function<bool()>& cancelled) {
  const RealClock clock;
  const absl::Duration started = clock.Monotonic();
  auto loading = std::make_shared<Loading>();
  std::thread([loading, data, vocab] {
    NameThread("corpus");
    absl::StatusOr<Corpus> corpus = Builder(data, vocab, &loading->progress).Build();
    const MutexLock lock(&loading->mutex);
    loading->result = std::move(corpus);
    loading->done.SignalAll();
  }).detach();

  const MutexLock lock(&loading->mutex);
  int64_t seen = 0;
  absl::Duration seen_at = started;
  const absl::Duration told_every = std::min(stall_timeout / 4, absl::Seconds(1));
  while (!loading->result) {
    loading->done.WaitFor(&loading->mutex, std::min(stall_timeout / 4, kLook));
    if (!loading->result && cancelled && cancelled()) {
      loading->progress.cancelled = true;
      return WithReason(absl::CancelledError("stopped as asked while the data was read"),
                        Reason::kStopped);
    }
    const absl::Duration now = clock.Monotonic();
    if (loading->progress.bytes != seen && now - seen_at >= told_every) {
      seen = loading->progress.bytes;
      seen_at = now;
      if (on_progress) on_progress();
    } else if (!loading->result && now - seen_at >= stall_timeout) {
      loading->progress.cancelled = true;
      return ReasonError(absl::StatusCode::kDeadlineExceeded, Reason::kDataStalled,
                         absl::StrFormat("no byte of the data files for %s after %d bytes "
                                         "(data.loader_timeout_seconds); "
                                         "does the file system respond?",
                                         absl::FormatDuration(stall_timeout), seen));
    }
  }
  absl::StatusOr<Corpus> corpus = *std::move(loading->result);
  if (corpus.ok()) corpus->info.load_seconds = absl::ToDoubleSeconds(clock.Monotonic() - started);
  return corpus;
}

}  // namespace nsa::train
