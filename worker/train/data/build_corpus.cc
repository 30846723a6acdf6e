#include "worker/train/data/build_corpus.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data/url.h"
#include "common/job/data_source.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/remote/remote.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {
namespace {

constexpr size_t kPassageBytes = 16 << 10;

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

  // The file's name and size: not its folder or host, so that a copy is the same data.
  void AddFile(const std::string& name, int64_t size) {
    const std::string line = absl::StrCat(name, "\n", size, "\n");
    XXH3_128bits_update(state_, line.data(), line.size());
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
    corpus_.separator = separator_.value_or(kNoSeparator);
    corpus_.info.source = data_.source();
    if (corpus_.separator >= vocab_) return TooLarge("the document separator", corpus_.separator);
    if (corpus_.separator == kNoSeparator && data_.document_mask()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.document_mask: true, but there is no separator (document_mask needs "
                       "one); ",
                       std::string(kSetSeparator)));
    }
    NSA_RETURN_IF_ERROR(CheckUrls());
    const std::vector<DataFiles> training = TrainingFiles(data_);
    for (const DataFiles& files : training) {
      corpus_.parts.push_back({files.name, files.source, files.weight, NewStore(), NewStore()});
    }
    NSA_RETURN_IF_ERROR(ReadValidation());
    NSA_RETURN_IF_ERROR(ReadNamedSets());
    for (size_t i = 0; i < training.size(); ++i) {
      NSA_RETURN_IF_ERROR(ReadTraining(training[i], i));
    }
    if (fraction() > 0 && corpus_.info.val_documents == 0 && lowest_) {
      NSA_RETURN_IF_ERROR(HoldOut(*lowest_));
    }
    if (corpus_.info.documents == 0) return NoTrainingDocuments();
    return Complete();
  }

 private:
  // Where a training document is, so that it can be moved to validation later.
  struct Place {
    Hash hash;
    size_t part;
    int64_t begin;
    int64_t end;
  };

  // More than 256 tokens take two bytes each.
  std::shared_ptr<TokenStore> NewStore() const {
    return std::make_shared<TokenStore>(/*wide=*/vocab_ > 256);
  }

  Corpus Complete() {
    for (const CorpusPart& part : corpus_.parts) {
      corpus_.info.tokens += part.train->size();
      corpus_.info.val_tokens += part.val->size();
    }
    corpus_.info.fingerprint = fingerprint_.Hex();
    if (corpus_.info.null_rows > 0) {
      spdlog::info("data: {} rows without a text (null) were skipped", corpus_.info.null_rows);
    }
    return std::move(corpus_);
  }

  // Sets `separator_`; nothing if only files that know their documents may be read. Makes the
  // tokenizer if there is one.
  absl::Status ChooseSeparator() {
    if (data_.has_separator() && !ReadsOnlyTokens(data_)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.separator: %s (only for data.source: tokens); remove it", data_.separator()));
    }
    const bool named = data_.tokenizer() != v1::TOKENIZER_UNSPECIFIED;
    if (ReadsText(data_) || (named && !data_.has_separator())) {
      NSA_ASSIGN_OR_RETURN(tokenizer_, MakeTokenizer(data_));
      separator_ = tokenizer_->separator();
    }
    if (data_.has_separator()) {
      NSA_ASSIGN_OR_RETURN(separator_, ParseSeparator(data_.separator()));
    }
    return absl::OkStatus();
  }

  double fraction() const { return data_.val_path().empty() ? data_.val_fraction() : 0.0; }

  // Asks the servers about all files before anything is read, in the words of preflight for local
  // files.
  absl::Status CheckUrls() {
    for (const DataFiles& files : AllDataFiles(data_)) {
      for (size_t i = 0; i < files.paths.size(); ++i) {
        if (!IsUrl(files.paths[i])) continue;
        NSA_RETURN_IF_ERROR(Annotate(CheckUrl(files.paths[i], files.source), files.FieldOf(i)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckUrl(const std::string& url, v1::DataSource source) {
    NSA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, Expand(url));
    for (const std::string& path : paths) {
      NSA_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
      if (size > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is empty; give a file that has data"));
    }
    const bool parquet = DataSourceInfoOf(source).format == DocumentFormat::kRows;
    return parquet ? CheckParquet(paths.front()) : absl::OkStatus();
  }

  // Of a pattern, the first file stands for all: a request for each may take minutes.
  absl::Status CheckParquet(const std::string& url) {
    if (progress_->remote == nullptr) return absl::OkStatus();  // opening it is an error
    NSA_ASSIGN_OR_RETURN(const std::string head, progress_->remote->Head(url, 4, progress_));
    if (head == "PAR1") return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(url,
                     ": does not begin with PAR1, as a Parquet file does; set data.source to what "
                     "the file holds"));
  }

  absl::StatusOr<std::vector<std::string>> Expand(const std::string& path) {
    if (IsUrl(path) && progress_->remote != nullptr) {
      return progress_->remote->Expand(path, progress_);
    }
    return ExpandPath(path);
  }

  absl::StatusOr<int64_t> SizeOf(const std::string& path) {
    if (IsUrl(path) && progress_->remote != nullptr)
      return progress_->remote->Size(path, progress_);
    std::error_code ignored;
    return static_cast<int64_t>(std::filesystem::file_size(path, ignored));
  }

  // The files of a set, and what they are to the fingerprint.
  absl::StatusOr<std::vector<std::string>> FilesOf(const DataFiles& files) {
    std::vector<std::string> all;
    for (size_t i = 0; i < files.paths.size(); ++i) {
      const auto paths = Expand(files.paths[i]);
      if (!paths.ok()) return Annotate(paths.status(), files.FieldOf(i));
      for (const std::string& path : *paths) {
        NSA_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
        const std::filesystem::path plain = WithoutQuery(path);
        fingerprint_.AddFile(plain.filename().string(), size);
        all.push_back(path);
      }
    }
    return all;
  }

  absl::StatusOr<std::unique_ptr<DocumentReader>> Reader(const DataFiles& files) {
    NSA_ASSIGN_OR_RETURN(std::vector<std::string> paths, FilesOf(files));
    DocumentOptions options;
    options.source = files.source;
    options.files.assign(paths.begin(), paths.end());
    options.text_field = files.text_field;
    options.separator = separator_;
    options.passage_bytes = fraction() > 0 ? kPassageBytes : 0;
    return std::make_unique<DocumentReader>(std::move(options), progress_);
  }

  // Reads files of validation documents into a store, and remembers them.
  absl::StatusOr<int64_t> ReadHeldOut(const DataFiles& files, TokenStore* store) {
    NSA_ASSIGN_OR_RETURN(const auto reader, Reader(files));
    Document document;
    int64_t documents = 0;
    while (true) {
      NSA_ASSIGN_OR_RETURN(const bool found, reader->Next(&document));
      if (!found) break;
      const Hash hash = HashOf(document);
      fingerprint_.Add(hash);
      val_hashes_.insert(hash);
      NSA_RETURN_IF_ERROR(Append(document, store));
      ++documents;
    }
    corpus_.info.null_rows += reader->nulls();
    return documents;
  }

  absl::Status ReadValidation() {
    for (const DataFiles& files : ValidationFiles(data_)) {
      NSA_ASSIGN_OR_RETURN(const int64_t documents,
                           ReadHeldOut(files, corpus_.parts.front().val.get()));
      corpus_.info.val_documents += documents;
    }
    if (data_.val_path().empty() || corpus_.info.val_documents > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(data_.val_path(0), ": no document in data.val_path"));
  }

  absl::Status ReadNamedSets() {
    for (const DataFiles& files : NamedValidationFiles(data_)) {
      corpus_.sets.push_back({files.name, NewStore()});
      NSA_ASSIGN_OR_RETURN(const int64_t documents,
                           ReadHeldOut(files, corpus_.sets.back().tokens.get()));
      if (documents > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(files.field, ": no document in ", files.paths[0], "; name another file"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTraining(const DataFiles& files, size_t part) {
    NSA_ASSIGN_OR_RETURN(const auto reader, Reader(files));
    Document document;
    while (true) {
      NSA_ASSIGN_OR_RETURN(const bool found, reader->Next(&document));
      if (!found) break;
      NSA_RETURN_IF_ERROR(AddTraining(document, part));
    }
    corpus_.info.null_rows += reader->nulls();
    return absl::OkStatus();
  }

  absl::Status AddTraining(const Document& document, size_t part) {
    const Hash hash = HashOf(document);
    fingerprint_.Add(hash);
    if (val_hashes_.count(hash) > 0) {
      ++corpus_.info.dropped_documents;
      return absl::OkStatus();
    }
    const CorpusPart& to = corpus_.parts[part];
    const bool held_out = static_cast<double>(hash.second) < std::ldexp(fraction(), 64);
    const int64_t begin = to.train->size();
    NSA_RETURN_IF_ERROR(Append(document, (held_out ? to.val : to.train).get()));
    ++(held_out ? corpus_.info.val_documents : corpus_.info.documents);
    if (held_out) return absl::OkStatus();
    if (!lowest_ || hash.second < lowest_->hash.second) {
      lowest_ = Place{hash, part, begin, to.train->size()};
      copies_of_lowest_ = 1;
    } else if (hash == lowest_->hash) {
      ++copies_of_lowest_;
    }
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
    const CorpusPart& part = corpus_.parts[place.part];
    part.train->Move(place.begin, place.end, part.val.get());
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

  // The fields that name validation files.
  std::string ValidationFields() const {
    if (data_.val().empty()) return "data.val_path";
    return data_.val_path().empty() ? "data.val" : "data.val_path and data.val";
  }

  absl::Status NoTrainingDocuments() const {
    const std::string field = data_.mix().empty() ? "data.path" : "data.mix";
    if (corpus_.info.dropped_documents > 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: all %d documents are validation documents too; use other files for %s", field,
          corpus_.info.dropped_documents, ValidationFields()));
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: no document for training (%d for validation); are the files empty?",
                        field, corpus_.info.val_documents));
  }

  const v1::DataSpec& data_;
  const int32_t vocab_;
  ReadProgress* const progress_;
  std::unique_ptr<TextTokenizer> tokenizer_;  // null if only token files are read
  std::optional<int32_t> separator_;
  Corpus corpus_;
  Fingerprint fingerprint_;
  std::set<Hash> val_hashes_;
  std::optional<Place> lowest_;  // of the training documents, the one with the lowest hash
  int64_t copies_of_lowest_ = 0;
  std::vector<uint16_t> buffer_;
};

}  // namespace

absl::StatusOr<Corpus> BuildCorpus(const v1::DataSpec& data, int32_t vocab,
                                   ReadProgress* progress) {
  return Builder(data, vocab, progress).Build();
}

}  // namespace nsa::train
