#include "worker/train/data/prepared/inspect.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/job/data/data_files.h"
#include "common/job/data/prepared.h"
#include "common/job/data_source.h"
#include "worker/train/data/encoder.h"
#include "worker/train/data/prepared/folders.h"
#include "worker/train/data/prepared/staging.h"
#include "worker/train/data/read/document_hash.h"
#include "worker/train/data/read/source_files.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

constexpr int kSamples = 3;
constexpr size_t kSampleBytes = 200;

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// The value that `share` of the sorted values do not exceed.
int64_t Quantile(const std::vector<int64_t>& sorted, double share) {
  const auto rank = static_cast<size_t>(share * static_cast<double>(sorted.size()) + 0.999999);
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

v1::LengthSummary SummaryOf(std::vector<int64_t> lengths) {
  v1::LengthSummary summary;
  if (lengths.empty()) return summary;
  std::sort(lengths.begin(), lengths.end());
  summary.set_least(lengths.front());
  summary.set_median(Quantile(lengths, 0.5));
  summary.set_p90(Quantile(lengths, 0.9));
  summary.set_most(lengths.back());
  return summary;
}

// Collects the report about one set.
class Inspector {
 public:
  void AddText(std::string_view text) {
    set_.set_text_bytes(set_.text_bytes() + std::ssize(text));
    bytes_.push_back(std::ssize(text));
    if (IsBlank(text)) set_.set_blank(set_.blank() + 1);
    AddSample(text);
  }
  void AddSample(std::string_view text) {
    if (set_.sample_size() < kSamples) set_.add_sample(CleanLine(CutText(text, kSampleBytes)));
  }
  bool wants_sample() const { return set_.sample_size() < kSamples; }
  void SeeToken(int32_t token) { set_.set_largest_token(std::max(set_.largest_token(), token)); }
  void AddTokens(int64_t tokens) {
    set_.set_tokens(set_.tokens() + tokens);
    tokens_.push_back(tokens);
  }
  // The low half of the hash: among 100 million documents two different ones have the same in one
  // set of 3,700.
  void AddHash(const DocumentHash& hash) { hashes_.push_back(hash.second); }

  v1::InspectedSet Finish() {
    std::sort(hashes_.begin(), hashes_.end());
    const auto different = std::unique(hashes_.begin(), hashes_.end()) - hashes_.begin();
    set_.set_documents(std::ssize(hashes_));
    set_.set_duplicates(std::ssize(hashes_) - different);
    *set_.mutable_document_bytes() = SummaryOf(std::move(bytes_));
    *set_.mutable_document_tokens() = SummaryOf(std::move(tokens_));
    return std::move(set_);
  }

  v1::InspectedSet& set() { return set_; }

 private:
  v1::InspectedSet set_;
  std::vector<uint64_t> hashes_;
  std::vector<int64_t> bytes_;
  std::vector<int64_t> tokens_;
};

// What is needed to read files; without an encoder texts are not tokenized.
struct Reading {
  const DocumentEncoder* encoder = nullptr;
  std::optional<int32_t> separator;
  size_t passage_bytes = 0;
  ReadProgress* progress = nullptr;
};

absl::Status AddDocument(const Document& document, const Reading& reading,
                         std::vector<Token>* tokens, Inspector* to) {
  to->AddHash(HashOf(document));
  if (document.tokens.empty()) to->AddText(document.text);
  if (reading.encoder == nullptr) {
    if (document.tokens.empty()) return absl::OkStatus();
    to->AddTokens(std::ssize(document.tokens));
    to->SeeToken(std::ranges::max(document.tokens));
    return absl::OkStatus();
  }
  NSA_ASSIGN_OR_RETURN(const DocumentEncoder::Encoded encoded,
                       reading.encoder->Encode(document, tokens, reading.progress));
  to->SeeToken(encoded.largest_token);
  to->set().set_answer_tokens(to->set().answer_tokens() + encoded.answer_tokens);
  to->AddTokens(std::ssize(*tokens));
  return absl::OkStatus();
}

absl::Status ReadFiles(const DataFiles& files, const std::vector<std::string>& paths,
                       const Reading& reading, Inspector* to) {
  DocumentOptions options = ReadingOfSet(files, paths);
  options.separator = reading.separator;
  options.passage_bytes = reading.passage_bytes;
  DocumentReader reader(std::move(options), reading.progress);
  Document document;
  std::vector<Token> tokens;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
    if (!found) break;
    NSA_RETURN_IF_ERROR(AddDocument(document, reading, &tokens, to));
  }
  for (v1::DataWarning& warning : FilterWarnings(files, reader.tally())) {
    *to->set().add_warnings() = std::move(warning);
  }
  to->set().set_null_rows(to->set().null_rows() + reader.nulls());
  to->set().set_empty_files(to->set().empty_files() + reader.empty_files());
  return absl::OkStatus();
}

// The text of a document whose tokens are bytes.
absl::StatusOr<std::string> TextOf(const ShardDocument& document, int32_t separator) {
  std::vector<int32_t> tokens(
      static_cast<size_t>(std::min<int64_t>(document.end - document.begin, kSampleBytes + 2)));
  NSA_RETURN_IF_ERROR(document.shard->Copy(document.begin, tokens));
  for (int32_t& token : tokens) token = WithoutMarks(token);
  const bool separated = !tokens.empty() && tokens.front() == separator;
  return std::string(tokens.begin() + (separated ? 1 : 0), tokens.end());
}

absl::Status ReadPreparedFolder(const fs::path& path, ReadProgress* progress, Inspector* to) {
  NSA_ASSIGN_OR_RETURN(const PreparedFolder folder, PreparedFolder::Open(path, progress));
  const v1::PreparedManifest& manifest = folder.manifest();
  const bool bytes = manifest.tokenizer() == v1::TOKENIZER_BYTE;
  NSA_RETURN_IF_ERROR(folder.ForEach([&](const ShardDocument& document) -> absl::Status {
    to->AddHash(document.hash);
    to->AddTokens(document.end - document.begin);
    if (!bytes || !to->wants_sample()) return absl::OkStatus();
    NSA_ASSIGN_OR_RETURN(const std::string text, TextOf(document, manifest.separator()));
    to->AddSample(text);
    return absl::OkStatus();
  }));
  to->SeeToken(manifest.largest_token());
  to->set().set_answer_tokens(to->set().answer_tokens() + manifest.conversations().answer_tokens());
  to->set().set_text_bytes(to->set().text_bytes() + manifest.text_bytes());
  to->set().set_null_rows(to->set().null_rows() + manifest.null_rows());
  to->set().set_empty_files(to->set().empty_files() + EmptyFilesOf(manifest));
  to->set().mutable_warnings()->MergeFrom(manifest.filter().warnings());
  return absl::OkStatus();
}

absl::StatusOr<v1::InspectedSet> InspectSet(const DataFiles& files,
                                            const std::vector<std::string>& paths,
                                            const Reading& reading) {
  Inspector inspector;
  inspector.set().set_name(files.field);
  inspector.set().set_source(files.source);
  inspector.set().set_files(std::ssize(paths));
  std::vector<std::string> plain;
  const bool tokens = DataSourceInfoOf(files.source).format == DocumentFormat::kTokens;
  for (const std::string& path : paths) {
    if (!tokens || !IsPreparedFolder(path)) {
      plain.push_back(path);
      continue;
    }
    NSA_RETURN_IF_ERROR(ReadPreparedFolder(path, reading.progress, &inspector));
  }
  NSA_RETURN_IF_ERROR(ReadFiles(files, plain, reading, &inspector));
  return inspector.Finish();
}

// The prepared folders of a prepared job, by name; or the path itself.
std::vector<std::string> FoldersIn(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(fs::path(path) / kPreparedJob, error)) return {path};
  std::vector<std::string> folders;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == kPreparedEnding) folders.push_back(at->path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

v1::DataSource SourceOfPath(const std::string& path) {
  const bool tokens = IsPreparedFolder(path) || path.ends_with(".bin") || path.ends_with(".npy");
  return tokens ? v1::DATA_SOURCE_TOKENS : TextSourceOf(path);
}

}  // namespace

absl::StatusOr<v1::DataInspection> InspectJob(const v1::JobSpec& spec, ReadProgress* progress) {
  const v1::DataSpec& data = spec.data();
  NSA_ASSIGN_OR_RETURN(const PreparedFolders prepared, PreparedFolders::Open(data, progress));
  NSA_ASSIGN_OR_RETURN(const DocumentEncoder encoder,
                       DocumentEncoder::Make(data, VocabOf(spec), prepared.separator()));
  const SourceFiles sources(progress);
  NSA_RETURN_IF_ERROR(sources.CheckFiles(data));
  const Reading reading = {.encoder = &encoder,
                           .separator = encoder.separator(),
                           .passage_bytes = PassageBytesFor(data),
                           .progress = progress};
  v1::DataInspection inspection;
  for (const DataFiles& files : AllDataFiles(data)) {
    if (!DataSourceInfoOf(files.source).has_files()) continue;
    NSA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, sources.Expand(files));
    NSA_ASSIGN_OR_RETURN(*inspection.add_sets(), InspectSet(files, paths, reading));
  }
  if (inspection.sets().empty()) {
    return absl::InvalidArgumentError(
        "data.source: generates tokens (must be a source with files); there is nothing to inspect");
  }
  return inspection;
}

absl::StatusOr<v1::DataInspection> InspectPaths(const std::vector<std::string>& paths,
                                                ReadProgress* progress) {
  v1::DataInspection inspection;
  for (const std::string& named : paths) {
    for (const std::string& path : FoldersIn(named)) {
      const DataFiles files = {.field = path,
                               .source = SourceOfPath(path),
                               .paths = {path},
                               .text_field = std::string(kDefaultTextField)};
      const Reading reading = {.separator = kNoSeparator, .progress = progress};
      NSA_ASSIGN_OR_RETURN(const std::vector<std::string> found, ExpandPath(path));
      NSA_ASSIGN_OR_RETURN(*inspection.add_sets(), InspectSet(files, found, reading));
    }
  }
  return inspection;
}

}  // namespace nsa::train
