#include "client/commands/init/look.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/connect/local/data_folder.h"
#include "client/show/human.h"
#include "common/base/count.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/estimate.h"
#include "common/job/data/data_files.h"
#include "common/job/data/file_kind.h"
#include "common/job/data/file_text.h"
#include "common/job/data/json_line.h"
#include "common/job/data/line_sample.h"
#include "common/job/data/parquet/schema.h"
#include "common/job/data/prepared.h"
#include "common/job/data/token_sample.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data/url.h"
#include "common/job/data_source.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSampledBytes = 1 << 20;  // of JSON lines, for the share of text in them

// Files of one source, which a job can list together.
struct InitSet {
  v1::DataSource source = v1::DATA_SOURCE_UNSPECIFIED;
  std::string text_field;  // empty: the default
  std::vector<std::string> paths;
  int64_t files = 0;
  double bytes = 0;       // unpacked, or as they are on disk of tokens
  double text_share = 1;  // of these bytes; the rest of JSON lines is no text
  double tokens = 0;      // of token files and prepared data
  bool known = true;      // the sizes
};

// What is found out word by word.
struct InitLook {
  std::vector<InitSet> sets;
  std::vector<std::string> validation;
  std::string checkpoint;
  std::optional<v1::PreparedManifest> prepared;
  int64_t largest_token = -1;
  bool needs_separator = false;
  bool remote = false;
  std::vector<std::string> notes;
};

std::string FirstLine(const std::string& path) {
  constexpr int64_t kLongest = 4 << 20;
  std::string text = TextHead(path, kLongest);
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (!IsBlankJsonLine(line)) return line;
    begin = end + 1;
  }
  return {};
}

nlohmann::json ObjectOf(const std::string& line) {
  nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  // Moved: a copy of what is nested a million times would take all of the stack.
  if (object.is_object()) return object;
  return {};
}

// The field of JSON lines that has the text: the default if it is there, else the longest text.
std::string TextFieldOfLine(const std::string& line) {
  if (TextOfJsonLine(line, kDefaultTextField).ok()) return {};
  std::string longest;
  size_t length = 0;
  const nlohmann::json object = ObjectOf(line);
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string() || value.get_ref<const std::string&>().size() <= length) continue;
    length = value.get_ref<const std::string&>().size();
    longest = key;
  }
  return longest;
}

// The column of a Parquet file that has the text: the default if it is there, else the largest.
std::string TextColumnOf(const std::string& path) {
  constexpr int64_t kMostFooter = 64 << 20;  // the worker takes no larger one
  const std::string footer = ParquetFooter(path, kMostFooter);
  if (parquet::FindTextColumn(footer, kDefaultTextField).ok()) return {};
  return parquet::LargestTextColumn(footer);
}

// The field of a file that has the text; empty: the default, or the source has no fields.
std::string FieldOfText(const std::string& path, v1::DataSource source) {
  if (source == v1::DATA_SOURCE_JSONL) return TextFieldOfLine(FirstLine(path));
  return source == v1::DATA_SOURCE_PARQUET ? TextColumnOf(path) : "";
}

v1::DataSource SourceOf(const std::string& path) {
  const std::string name(WithoutQuery(path));
  const bool numbers = absl::EndsWith(name, ".npy") || absl::EndsWith(name, ".bin");
  const v1::DataSource by_name = numbers ? v1::DATA_SOURCE_TOKENS : TextSourceOf(name);
  if (IsUrl(path)) return by_name;
  const std::string head = FilePart(path, 0, kFileHeadBytes);
  const FileKindInfo info = RecogniseFile(head, JobFileBytes(path).value_or(0));
  if (info.source != v1::DATA_SOURCE_UNSPECIFIED) return info.source;
  const bool plain = by_name == v1::DATA_SOURCE_TEXT && !IsCompressed(path);
  const bool lines = plain && absl::StartsWith(head, "{") && !ObjectOf(FirstLine(path)).is_null();
  return lines ? v1::DATA_SOURCE_JSONL : by_name;
}

InitSet& SetOf(v1::DataSource source, const std::string& text_field, InitLook* look) {
  for (InitSet& set : look->sets) {
    if (set.source == source && set.text_field == text_field) return set;
  }
  return look->sets.emplace_back(InitSet{.source = source, .text_field = text_field});
}

// The size of one file of a set.
void AddSize(const std::string& path, InitSet* set, InitLook* look) {
  ++set->files;
  const auto bytes = static_cast<double>(JobFileBytes(path).value_or(0));
  if (set->source == v1::DATA_SOURCE_TOKENS) {
    const absl::StatusOr<TokenSample> sample = SampleTokens(path);
    if (sample.ok()) {
      set->tokens += static_cast<double>(sample->tokens);
      look->largest_token = std::max(look->largest_token, sample->largest);
    }
    std::error_code error;
    const bool knows =
        absl::EndsWith(path, ".bin") && fs::exists(fs::path(path).replace_extension(".idx"), error);
    look->needs_separator |= !knows;
    set->bytes += bytes;
    return;
  }
  const bool packed =
      IsCompressed(path) || DataSourceInfoOf(set->source).format == DocumentFormat::kRows;
  set->bytes += bytes * (packed ? kTextPerCompressedByte : 1);
}

absl::Status AddFiles(const std::string& path, InitLook* look) {
  if (IsUrl(path)) {
    NSA_RETURN_IF_ERROR(CheckDataUrl(path));
    InitSet& set = SetOf(SourceOf(path), "", look);
    set.paths.push_back(path);
    set.known = false;
    ++set.files;
    look->remote = true;
    return absl::OkStatus();
  }
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOfWord(path));
  const v1::DataSource source = SourceOf(files.front());
  InitSet& set = SetOf(source, FieldOfText(files.front(), source), look);
  if (source == v1::DATA_SOURCE_JSONL && set.paths.empty()) {
    set.text_share = SampleLines(files.front(), set.text_field, nullptr, kSampledBytes).TextShare();
  }
  set.paths.push_back(path);
  for (const std::string& file : files) AddSize(file, &set, look);
  return absl::OkStatus();
}

absl::Status AddPrepared(const std::string& folder, InitLook* look) {
  NSA_ASSIGN_OR_RETURN(v1::PreparedManifest manifest, ReadPrepared(folder));
  InitSet& set = SetOf(v1::DATA_SOURCE_TOKENS, "", look);
  set.paths.push_back(folder);
  ++set.files;
  set.tokens += static_cast<double>(manifest.tokens());
  set.bytes += static_cast<double>(manifest.tokens()) * manifest.token_bytes();
  look->prepared = std::move(manifest);
  return absl::OkStatus();
}

// The folder that `nsactl data prepare` wrote: train.tokens, perhaps with val.tokens.
absl::Status AddPreparedJob(const fs::path& folder, InitLook* look) {
  const fs::path train = folder / "train.tokens";
  if (!IsPreparedFolder(train)) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.string(),
                     ": prepared data of a mixture, which has its own job file; "
                     "submit that: nsactl submit ",
                     (folder / "job.yaml").string()));
  }
  if (IsPreparedFolder(folder / "val.tokens")) {
    look->validation.push_back((folder / "val.tokens").string());
  }
  return AddPrepared(train.string(), look);
}

// The pattern of the files of a folder whose ending has the most bytes.
absl::Status AddFolder(const fs::path& folder, InitLook* look) {
  NSA_ASSIGN_OR_RETURN(const DataFolder data, LookAtFolder(folder));
  const std::string& pattern = data.patterns.front();
  if (data.patterns.size() > 1) {
    look->notes.push_back(absl::StrCat(folder.string(), " has data of several kinds; taken is ",
                                       pattern, ", name the others as well to mix them"));
  }
  if (!data.left_out.empty()) look->notes.push_back(data.left_out);
  return AddFiles(pattern, look);
}

absl::Status LookAtWord(const std::string& word, InitLook* look) {
  std::error_code error;
  const fs::path path(word);
  if (IsUrl(word) || !fs::is_directory(path, error)) return AddFiles(word, look);
  if (LookUpNamed(path).has_value()) {
    if (!look->checkpoint.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(word, ": a second model (", look->checkpoint,
                                                     " is one); name one model, and data"));
    }
    look->checkpoint = word;
    return absl::OkStatus();
  }
  if (fs::exists(path / kPreparedManifest, error)) return AddPrepared(word, look);
  if (fs::exists(path / kPreparedJob, error)) return AddPreparedJob(path, look);
  if (fs::exists(path / "config.json", error) &&
      (fs::exists(path / kModelFile, error) ||
       fs::exists(path / absl::StrCat(kModelFile, ".index.json"), error))) {
    return absl::InvalidArgumentError(
        absl::StrCat(word,
                     ": an exported model; make a checkpoint of it and name that: nsactl "
                     "import ",
                     word, " CHECKPOINT"));
  }
  return AddFolder(path, look);
}

// A vocabulary that has this token: the smallest of those that tokenizers have.
int32_t VocabularyOf(int64_t largest) {
  for (const int32_t size : {256, 32'000, 50'257, 65'536, 100'277, 128'256, 151'936, 200'019}) {
    if (largest < size) return size;
  }
  return kMostTokens;
}

void DescribeTokens(const InitLook& look, InitData* data) {
  v1::DataSpec& spec = *data->spec.mutable_data();
  if (look.prepared.has_value()) {
    data->spec.mutable_model()->set_vocab(look.prepared->vocab());
    if (look.prepared->tokenizer() == v1::TOKENIZER_BYTE) spec.set_tokenizer(v1::TOKENIZER_BYTE);
    data->comments["model.vocab"] = "that of the tokenizer with which the data was prepared";
    return;
  }
  if (spec.tokenizer() != v1::TOKENIZER_UNSPECIFIED || look.largest_token < 0) return;
  const int32_t vocab = VocabularyOf(look.largest_token);
  data->spec.mutable_model()->set_vocab(vocab);
  data->comments["model.vocab"] = absl::StrCat("the largest token that was found is ",
                                               look.largest_token, "; set it to your tokenizer's");
  if (!look.needs_separator || spec.has_separator()) return;
  const bool gpt2 = vocab == 50'257 && look.largest_token == vocab - 1;
  spec.set_separator(gpt2 ? "50256" : "none");
  data->comments["data.separator"] =
      gpt2 ? "GPT-2's token between documents" : "the token between documents, if there is one";
}

// A name for a source of a mixture: that of its first file.
std::string MixName(const InitSet& set, const v1::DataSpec& data) {
  std::string name;
  const std::string file = fs::path(std::string(WithoutQuery(set.paths.front()))).stem().string();
  for (const char c : file) {
    const bool plain = c == '-' || c == '_' || c == '.' || (c >= '0' && c <= '9') ||
                       (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain && (!name.empty() || (c != '-' && c != '.'))) name += c;
  }
  name = name.empty() ? "data" : name.substr(0, 50);
  const auto taken = [&](const std::string& some) {
    return std::ranges::any_of(data.mix(),
                               [&](const v1::MixSource& m) { return m.name() == some; });
  };
  std::string unique = name;
  for (int n = 2; taken(unique); ++n) unique = absl::StrCat(name, "-", n);
  return unique;
}

void AddMix(const std::vector<InitSet>& sets, v1::DataSpec* data) {
  double all = 0;
  for (const InitSet& set : sets) all += set.bytes;
  const bool known = all > 0 && std::ranges::all_of(sets, &InitSet::known);
  for (const InitSet& set : sets) {
    v1::MixSource mix;
    mix.set_name(MixName(set, *data));
    mix.set_source(set.source);
    for (const std::string& path : set.paths) mix.add_path(path);
    mix.set_weight(known ? std::max(1.0, std::round(100 * set.bytes / all)) : 1);
    if (!set.text_field.empty()) mix.set_text_field(set.text_field);
    *data->add_mix() = std::move(mix);
  }
}

void AddSets(const InitLook& look, InitData* result) {
  v1::DataSpec& data = *result->spec.mutable_data();
  for (const std::string& path : look.validation) data.add_val_path(path);
  if (look.sets.size() > 1) {
    AddMix(look.sets, &data);
    result->comments["data.mix"] = "the weights are in proportion to the sizes";
    return;
  }
  const InitSet& set = look.sets.front();
  data.set_source(set.source);
  for (const std::string& path : set.paths) data.add_path(path);
  if (set.text_field.empty() || data.has_text_field()) return;
  data.set_text_field(set.text_field);
  result->comments["data.text_field"] = set.source == v1::DATA_SOURCE_PARQUET
                                            ? "the largest column of texts"
                                            : "the longest text of the first line";
}

void AddAmount(const InitLook& look, InitData* result) {
  const bool pairs = HasTokenizerFiles(result->spec.data().tokenizer());
  constexpr double kTextPerToken = 4;  // as preflight assumes
  double tokens = 0, bytes = 0;
  int64_t files = 0;
  bool known = true;
  for (const InitSet& set : look.sets) {
    const bool numbers = set.source == v1::DATA_SOURCE_TOKENS;
    tokens += numbers ? set.tokens : set.bytes * set.text_share / (pairs ? kTextPerToken : 1);
    bytes += set.bytes;
    files += set.files;
    known = known && set.known;
  }
  result->tokens = known ? static_cast<int64_t>(tokens) : -1;
  result->in_words =
      absl::StrCat(Count(files, "file"), known ? ", " : "",
                   known ? HumanBytes(static_cast<int64_t>(bytes)) : " of unknown size");
}

// The model of a checkpoint, which the job trains on.
absl::Status AddModel(const std::string& checkpoint, InitData* result) {
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointState state,
                       ReadCheckpointState(LookUpNamed(checkpoint).value_or(checkpoint)));
  *result->spec.mutable_model() = state.spec().model();
  *result->spec.mutable_nsa() = state.spec().nsa();
  result->spec.mutable_train()->set_seq_len(state.spec().train().seq_len());
  const v1::DataSpec& trained = state.spec().data();
  v1::DataSpec& data = *result->spec.mutable_data();
  if (data.tokenizer() == v1::TOKENIZER_UNSPECIFIED) {
    data.set_tokenizer(trained.tokenizer());
    if (trained.has_tokenizer_path()) data.set_tokenizer_path(trained.tokenizer_path());
  }
  result->spec.mutable_restart()->set_init(checkpoint);
  result->has_model = true;
  result->comments["model"] = "those of the checkpoint, and so are nsa, the tokenizer and seq_len";
  result->comments["restart.init"] = "begin with these weights, at step 0";
  return absl::OkStatus();
}

std::string NameAfter(const std::string& word) {
  if (IsHubUrl(word)) {
    const absl::StatusOr<HubPath> hub = ParseHubUrl(word);
    if (hub.ok()) return hub->repository.substr(hub->repository.find('/') + 1);
  }
  fs::path path(std::string(WithoutQuery(word)));
  if (!path.has_filename()) path = path.parent_path();
  std::string name = path.filename().string();
  name.resize(name.size() - DataEndingOf(name).size());
  // Of books/*.txt and books/train.txt the folder says more.
  std::error_code error;
  if ((IsPattern(name) && !fs::exists(path, error)) || name == "train") {
    name = fs::absolute(path, error).parent_path().filename().string();
  }
  return name;
}

}  // namespace

void ReadInPassing(v1::JobSpec* spec, FieldComments* comments) {
  spec->mutable_data()->set_stream(true);
  (*comments)["data.stream"] = "read in passing, neither downloaded nor held in memory as a whole";
}

absl::StatusOr<InitData> LookAtData(const std::vector<std::string>& what, const v1::JobSpec& base) {
  InitLook look;
  for (const std::string& word : what) NSA_RETURN_IF_ERROR(LookAtWord(word, &look));
  if (look.sets.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(look.checkpoint, ": a model, and no data to train it on; name the data too"));
  }
  InitData result;
  result.spec = base;
  result.notes = std::move(look.notes);
  for (const std::string& word : what) {
    if (word != look.checkpoint && result.name.empty()) result.name = NameAfter(word);
  }
  if (!look.checkpoint.empty()) NSA_RETURN_IF_ERROR(AddModel(look.checkpoint, &result));
  AddSets(look, &result);
  const bool numbers = ReadsOnlyTokens(result.spec.data());
  if (numbers && !result.has_model) DescribeTokens(look, &result);
  if (look.remote) ReadInPassing(&result.spec, &result.comments);
  AddAmount(look, &result);
  return result;
}

}  // namespace nsa::client
