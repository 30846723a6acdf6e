#include "worker/train/data/build_corpus.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data/file_kind.h"
#include "common/job/data/held_out.h"
#include "common/job/data/large_data.h"
#include "common/job/data/prepared.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data_source.h"
#include "worker/train/data/encoder.h"
#include "worker/train/data/fingerprint.h"
#include "worker/train/data/held_out_balance.h"
#include "worker/train/data/prepared/folders.h"
#include "worker/train/data/prepared/held_shards.h"
#include "worker/train/data/prepared/token_cache.h"
#include "worker/train/data/read/document_hash.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/read/source_files.h"
#include "worker/train/data/stream/held_out.h"
#include "worker/train/data/stream/plan.h"

namespace nsa::train {
namespace {

using Hash = DocumentHash;

constexpr int64_t kBytesOfDocument = 64;  // beside its text: separator, hash, place

absl::Status BecomesTooMuch(const Document& document, int64_t file_bytes, int64_t most) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: the %d bytes of the files have become more than %d bytes of documents up to here (%d "
      "times the files, and 256 MiB); use data.stream, `nsactl data prepare`, or files that are "
      "what they seem",
      document.place, file_bytes, most, kHeldTimes));
}

// Builds a Corpus document by document.
class Builder {
 public:
  Builder(const v1::DataSpec& data, int32_t vocab, const TokenCacheOptions& cache,
          const HeldOutNeed& need, ReadProgress* progress)
      : data_(data),
        vocab_(vocab),
        need_(need),
        progress_(progress),
        sources_(progress),
        cache_(cache, progress),
        held_(vocab, LearnsAnswers(data)) {}

  absl::StatusOr<Corpus> Build() {
    NSA_ASSIGN_OR_RETURN(prepared_, PreparedFolders::Open(data_, progress_));
    const std::string tokenizer = TokenizerHash();
    absl::StatusOr<DocumentEncoder> encoder =
        DocumentEncoder::Make(data_, vocab_, prepared_.separator());
    NSA_RETURN_IF_ERROR(encoder.status());
    encoder_.emplace(*std::move(encoder));
    corpus_.separator = encoder_->separator_or_none();
    corpus_.info.source = data_.source();
    NSA_RETURN_IF_ERROR(prepared_.Check(data_, vocab_, corpus_.separator));
    NSA_RETURN_IF_ERROR(prepared_.VerifyToTrain());
    NSA_RETURN_IF_ERROR(sources_.CheckFiles(data_));
    NSA_RETURN_IF_ERROR(ChooseWhereTokensAre(tokenizer));
    const std::vector<DataFiles> training = TrainingFiles(data_);
    for (const DataFiles& files : training) {
      corpus_.parts.push_back({files.name, files.source, files.weight,
                               std::make_shared<TokenStore>(), std::make_shared<TokenStore>()});
    }
    NSA_RETURN_IF_ERROR(ReadValidation());
    NSA_RETURN_IF_ERROR(ReadNamedSets());
    if (data_.stream()) return CompleteStream();
    for (size_t i = 0; i < training.size(); ++i) {
      NSA_RETURN_IF_ERROR(ReadTraining(training[i], i));
    }
    if (fraction() > 0) NSA_RETURN_IF_ERROR(BalanceHeldOut());
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

  Corpus Complete() {
    corpus_.info.tokens = Training();
    corpus_.info.val_tokens = HeldOut();
    corpus_.info.fingerprint = fingerprint_.Finish();
    std::string& by_hash = corpus_.info.fingerprint_by_hash;
    if (by_hash.empty()) by_hash = corpus_.info.fingerprint;
    corpus_.info.parts = std::move(fingerprint_.parts());
    if (corpus_.info.null_rows > 0) {
      spdlog::info("data: {} rows without a text (null) were skipped", corpus_.info.null_rows);
    }
    if (left_out_ > 0) spdlog::info("data: {} records were left out by their fields", left_out_);
    if (corpus_.info.empty_files > 0) {
      spdlog::info("data: {} empty files were passed", corpus_.info.empty_files);
    }
    return std::move(corpus_);
  }

  absl::StatusOr<Corpus> CompleteStream() {
    NSA_ASSIGN_OR_RETURN(StreamPlan plan, PlanStream(data_, sources_, &fingerprint_));
    plan.encoder = std::make_shared<const DocumentEncoder>(*std::move(encoder_));
    plan.validation = std::move(val_hashes_);
    if (plan.val_fraction > 0 && need_.rows > 0) {
      NSA_RETURN_IF_ERROR(FindHeldOut(plan, need_, progress_, &held_, &corpus_));
    }
    corpus_.stream = std::make_shared<const StreamPlan>(std::move(plan));
    return Complete();
  }

  double fraction() const { return data_.val_path().empty() ? data_.val_fraction() : 0.0; }

  using Visit = PreparedFolder::Visit;

  // Documents of a set that follow each other: of a folder of tokens, or of files that are read.
  struct Piece {
    // Null if the files have to be read.
    const PreparedFolder* folder() const { return kept ? &*kept : prepared; }
    const PreparedFolder* prepared = nullptr;
    std::optional<PreparedFolder> kept;  // in the cache
    std::vector<std::string> paths;      // the files, or the prepared folder
  };

  // SHA-256 of the tokenizer's files; empty if there are none or no tokens are kept.
  std::string TokenizerHash() const {
    if (!cache_.on() || !ReadsText(data_)) return "";
    return TokenizerSha256(data_).value_or("");  // loading the files says what is wrong with them
  }

  // Files that are large together are tokenized once for the machine. `tokenizer` is the
  // TokenizerHash() of the time before the tokenizer was loaded.
  absl::Status ChooseWhereTokensAre(const std::string& tokenizer) {
    if (!cache_.on()) return absl::OkStatus();
    NSA_ASSIGN_OR_RETURN(const int64_t bytes, FileBytes());
    if (!cache_.IsFor(bytes)) return absl::OkStatus();
    tokenizer_sha256_ = TokenizerHash();
    use_cache_ = tokenizer_sha256_ == tokenizer;
    if (!use_cache_) spdlog::warn("data: the files of the tokenizer change; no tokens are kept");
    return absl::OkStatus();
  }

  // Of all files whose tokens would be held.
  absl::StatusOr<int64_t> FileBytes() const {
    int64_t bytes = 0;
    std::vector<DataFiles> all = AllDataFiles(data_);
    if (data_.stream()) all.erase(all.begin(), all.begin() + std::ssize(TrainingFiles(data_)));
    for (const DataFiles& files : all) {
      const absl::StatusOr<std::vector<std::string>> paths = sources_.Expand(files);
      if (!paths.ok()) continue;  // reading says what is wrong, in its order
      for (const std::string& path : *paths) {
        if (progress_->cancelled) return absl::CancelledError("data: cancelled");
        if (IsPreparedFolder(path)) continue;
        bytes += std::max<int64_t>(sources_.SizeOf(path).value_or(0), 0);
      }
    }
    return bytes;
  }

  // Calls `visit` for every document of a set, in order.
  absl::Status ForEach(const DataFiles& files, const Visit& visit) {
    NSA_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, PiecesOf(files));
    NSA_RETURN_IF_ERROR(AddToFingerprint(pieces));
    FilterTally tally;
    for (const Piece& piece : pieces) {
      fingerprint_.Begin(piece.paths);
      if (piece.folder() != nullptr) WarnAsKept(files, piece.folder()->manifest().filter());
      NSA_RETURN_IF_ERROR(piece.folder() != nullptr
                              ? ForEachMapped(*piece.folder(), visit)
                              : ForEachRead(OptionsFor(files, piece.paths), visit, &tally));
    }
    return CheckTally(files, tally);
  }

  // `tally`: of all records of a set that were read here; none if its tokens were kept.
  absl::Status CheckTally(const DataFiles& files, const FilterTally& tally) {
    if (files.filter == nullptr) return absl::OkStatus();
    NSA_RETURN_IF_ERROR(CheckFilter(files, tally));
    left_out_ += tally.records - tally.passed;
    for (v1::DataWarning& warning : FilterWarnings(files, tally)) Warn(std::move(warning));
    return absl::OkStatus();
  }

  void Warn(v1::DataWarning warning) {
    spdlog::warn("{}", WarningText(warning));
    corpus_.info.warnings.push_back(std::move(warning));
  }

  // Tokens in the cache may have been made for another job, which has the filter under other keys.
  void WarnAsKept(const DataFiles& files, const v1::PreparedFilter& kept) {
    if (files.filter == nullptr || files.filter_is_shared) return;
    const std::vector<FieldCondition>& conditions = files.filter->conditions();
    for (v1::DataWarning warning : kept.warnings()) {
      const auto at = static_cast<size_t>(warning.condition());
      if (at < conditions.size()) warning.set_field(conditions[at].key());
      Warn(std::move(warning));
    }
  }

  absl::StatusOr<std::vector<Piece>> PiecesOf(const DataFiles& files) {
    NSA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, sources_.Expand(files));
    std::vector<Piece> pieces;
    for (const std::string& path : paths) {
      const PreparedFolder* const folder = prepared_.Find(path);
      const bool follows = !pieces.empty() && pieces.back().prepared == nullptr;
      if (folder != nullptr || !follows) pieces.push_back({.prepared = folder});
      pieces.back().paths.push_back(path);
    }
    for (Piece& piece : pieces) {
      if (use_cache_ && piece.prepared == nullptr) {
        NSA_ASSIGN_OR_RETURN(piece.kept, Kept(files, piece.paths));
      }
    }
    return pieces;
  }

  // The tokens of files in the cache; nothing if they have to be read.
  absl::StatusOr<std::optional<PreparedFolder>> Kept(const DataFiles& files,
                                                     const std::vector<std::string>& paths) {
    if (std::any_of(paths.begin(), paths.end(), IsPreparedFolder)) return std::nullopt;
    NSA_ASSIGN_OR_RETURN(std::optional<PreparedFolder> kept,
                         cache_.Open({.files = files,
                                      .paths = paths,
                                      .vocab = vocab_,
                                      .tokenizer = data_.tokenizer(),
                                      .tokenizer_sha256 = tokenizer_sha256_,
                                      .chat_format = encoder_->chat_format(),
                                      .passage_bytes = PassageBytesFor(data_)},
                                     *encoder_));
    // Made for a larger vocabulary: reading the files says which token is not in this one, and
    // where.
    if (kept && kept->manifest().largest_token() >= vocab_) return std::nullopt;
    return kept;
  }

  // Tokens of a folder count as the files that they were made of.
  absl::Status AddToFingerprint(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      if (piece.folder() != nullptr) {
        for (const v1::PreparedSource& source : piece.folder()->manifest().sources()) {
          fingerprint_.AddFile(source.path(), source.bytes(),
                               piece.prepared != nullptr ? piece.paths.front() : source.path());
        }
        continue;
      }
      for (const std::string& path : piece.paths) {
        NSA_ASSIGN_OR_RETURN(const int64_t size, sources_.SizeOf(path));
        fingerprint_.AddFile(path, size, path);
      }
    }
    return absl::OkStatus();
  }

  DocumentOptions OptionsFor(const DataFiles& files, const std::vector<std::string>& paths) const {
    DocumentOptions options = ReadingOfSet(files, paths);
    options.separator = encoder_->separator();
    options.passage_bytes = PassageBytesFor(data_);
    return options;
  }

  Cut CutOf(v1::DataSource source, v1::Tokenizer tokenizer) const {
    if (!HasPassages(source, corpus_.separator)) return Cut::kNowhere;
    const bool bytes = DataSourceInfoOf(source).has_text() && !HasTokenizerFiles(tokenizer);
    return bytes ? Cut::kInText : Cut::kAtAnyToken;
  }

  absl::Status ForEachRead(DocumentOptions options, const Visit& visit, FilterTally* tally) {
    const v1::DataSource source = options.source;
    cut_ = CutOf(source, data_.tokenizer());
    int64_t bytes = 0;
    bool known = true;
    for (const auto& file : options.files) {
      NSA_ASSIGN_OR_RETURN(const int64_t size, sources_.SizeOf(file.string()));
      known = known && size >= 0;  // not that of a pipe
      bytes += size;
    }
    const int64_t most = known ? MostHeldOf(bytes) : INT64_MAX;
    int64_t held = 0;
    DocumentReader reader(std::move(options), progress_);
    Document document;
    while (true) {
      NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
      if (!found) break;
      CheckEncoding(source, document);
      held += kBytesOfDocument + std::ssize(document.text) + std::ssize(document.tokens);
      if (held > most) return BecomesTooMuch(document, bytes, most);
      NSA_ASSIGN_OR_RETURN(const HeldShards::Held in_shard,
                           held_.Encode(document, *encoder_, progress_));
      corpus_.info.inner_separators += in_shard.inner_separators;
      NSA_RETURN_IF_ERROR(visit(in_shard.document));
    }
    corpus_.info.null_rows += reader.nulls();
    tally->Add(reader.tally());
    corpus_.info.empty_files += reader.empty_files();
    return absl::OkStatus();
  }

  absl::Status ForEachMapped(const PreparedFolder& folder, const Visit& visit) {
    cut_ = CutOf(folder.manifest().source(), folder.manifest().tokenizer());
    NSA_RETURN_IF_ERROR(folder.ForEach(visit));
    corpus_.info.null_rows += folder.manifest().null_rows();
    left_out_ += folder.manifest().filter().left_out();
    corpus_.info.empty_files += EmptyFilesOf(folder.manifest());
    corpus_.info.inner_separators += folder.manifest().inner_separators();
    return absl::OkStatus();
  }

  // Reads files of validation documents into a store, and remembers them.
  absl::StatusOr<int64_t> ReadHeldOut(const DataFiles& files, TokenStore* store) {
    int64_t documents = 0;
    NSA_RETURN_IF_ERROR(ForEach(files, [&](const ShardDocument& document) {
      fingerprint_.Add(document.hash);
      val_hashes_.insert(document.hash);
      ++documents;
      Append(document, store);
      return absl::OkStatus();
    }));
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
      corpus_.sets.push_back({files.name, std::make_shared<TokenStore>()});
      NSA_ASSIGN_OR_RETURN(const int64_t documents,
                           ReadHeldOut(files, corpus_.sets.back().tokens.get()));
      if (documents > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(files.field, ": no document in ", files.paths[0], "; name another file"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTraining(const DataFiles& files, size_t part) {
    return ForEach(files,
                   [&](const ShardDocument& document) { return AddTraining(document, part); });
  }

  absl::Status AddTraining(const ShardDocument& document, size_t part) {
    const Hash& hash = document.hash;
    fingerprint_.Add(hash);
    if (val_hashes_.count(hash) > 0) {
      ++corpus_.info.dropped_documents;
      return ForgetSeparators(document);
    }
    const CorpusPart& to = corpus_.parts[part];
    const bool held_out = IsHeldOut(hash, fraction());
    TokenStore* const store = (held_out ? to.val : to.train).get();
    const int64_t begin = store->size();
    Append(document, store);
    if (fraction() > 0) balance_.Add({hash, part, held_out, begin, store->size(), cut_});
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

  absl::Status BalanceHeldOut() {
    corpus_.info.fingerprint_by_hash = fingerprint_.Finish();
    // A conversation is a row of its own, however short it is.
    const int32_t least = LearnsAnswers(data_) ? 0 : need_.seq_len;
    const HeldOutTokens share = HeldOutTokensOf(HeldOut() + Training(), fraction(), least);
    if (need_.fingerprint != corpus_.info.fingerprint_by_hash) {
      NSA_ASSIGN_OR_RETURN(const bool changed, balance_.Apply(share, &corpus_));
      if (changed) fingerprint_.AddHeldOut(HeldOut());
    }
    if (corpus_.info.val_documents == 0 && lowest_) NSA_RETURN_IF_ERROR(HoldOutOne(*lowest_));
    Note(Reason::kValShare, HeldOutShareText(HeldOut(), HeldOut() + Training(), fraction()));
    return absl::OkStatus();
  }

  void Note(Reason reason, std::string text) {
    if (text.empty()) return;
    spdlog::warn("{}", text);
    corpus_.info.notes.push_back({reason, std::move(text)});
  }

  // Of the first file of plain text that begins in another encoding.
  void CheckEncoding(v1::DataSource source, const Document& document) {
    constexpr size_t kLookedAt = 64 << 10;
    if (other_encoding_ || document.index > 0) return;
    if (DataSourceInfoOf(source).format != DocumentFormat::kText) return;
    const double share = ShareNotUtf8(std::string_view(document.text).substr(0, kLookedAt));
    if (share <= kMostNotUtf8) return;
    other_encoding_ = true;
    Note(Reason::kDataNotUtf8,
         absl::StrFormat(
             "%s: %.0f %% of the bytes from 0x80 on are not UTF-8 (at most %.0f %%); %s",
             document.place, 100 * share, 100 * kMostNotUtf8, std::string(kConvertToUtf8)));
  }

  // Tokens of all parts.
  int64_t HeldOut() const {
    int64_t tokens = 0;
    for (const CorpusPart& part : corpus_.parts) tokens += part.val->size();
    return tokens;
  }
  int64_t Training() const {
    int64_t tokens = 0;
    for (const CorpusPart& part : corpus_.parts) tokens += part.train->size();
    return tokens;
  }

  // Moves one document to validation, because the fraction selected none.
  absl::Status HoldOutOne(const Place& place) {
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

  // The separators inside all documents were counted; those of this one are left out.
  absl::Status ForgetSeparators(const ShardDocument& document) {
    if (corpus_.separator == kNoSeparator || LearnsAnswers(data_)) return absl::OkStatus();
    std::vector<int32_t> tokens(static_cast<size_t>(document.end - document.begin));
    NSA_RETURN_IF_ERROR(document.shard->Copy(document.begin, tokens));
    corpus_.info.inner_separators -=
        std::count(tokens.begin() + 1, tokens.end(), corpus_.separator);
    return absl::OkStatus();
  }

  void Append(const ShardDocument& document, TokenStore* store) {
    store->Append(document.shard, document.begin, document.end);
    progress_->bytes += 1;
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
  const HeldOutNeed need_;
  ReadProgress* const progress_;
  const SourceFiles sources_;
  PreparedFolders prepared_;
  TokenCache cache_;
  bool use_cache_ = false;
  std::string tokenizer_sha256_;  // if the cache is used
  std::optional<DocumentEncoder> encoder_;
  HeldShards held_;          // of files that are read
  Cut cut_ = Cut::kNowhere;  // of the documents that are being visited
  Corpus corpus_;
  Fingerprint fingerprint_;
  std::set<Hash> val_hashes_;
  HeldOutBalance balance_;
  int64_t left_out_ = 0;         // records that do not pass a filter
  bool other_encoding_ = false;  // in a file, which is noted
  std::optional<Place> lowest_;  // of the training documents, the one with the lowest hash
  int64_t copies_of_lowest_ = 0;
};

}  // namespace

absl::StatusOr<Corpus> BuildCorpus(const v1::DataSpec& data, int32_t vocab,
                                   const TokenCacheOptions& cache, const HeldOutNeed& need,
                                   ReadProgress* progress) {
  return Builder(data, vocab, cache, need, progress).Build();
}

}  // namespace nsa::train
