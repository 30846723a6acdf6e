// Rules about the files of the data: whether they are listed, can be read and are what the job
// says.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "common/chat/render.h"
#include "common/estimate/estimate.h"
#include "common/job/data/conversations.h"
#include "common/job/data/file_kind.h"
#include "common/job/data/json_line.h"
#include "common/job/data/parquet/schema.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data/url.h"
#include "common/preflight/data/data_facts.h"

namespace nsa {
namespace {

Problems PathMissing(const PreflightFacts& facts) {
  if (IsGenerated(facts.spec.data())) return {};
  Problems problems;
  for (const DataFiles& files : TrainingFiles(facts.spec.data())) {
    if (!files.paths.empty()) continue;
    problems.push_back(
        {files.field, "no files (this data.source needs at least one)", "list the training files"});
  }
  return problems;
}

Problems PathIgnored(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  const bool none = data.path().empty() && data.val_path().empty() && data.val().empty();
  if (!IsGenerated(data) || none) return {};
  return {{"data.source", "generates tokens, so the files that the job lists would not be read",
           absl::StrCat("set source to ", SourcesWithFiles(), ", or remove the files")}};
}

Problems KindMismatch(const PreflightFacts& facts) {
  Problems problems;
  for (const NamedFile& file : AllFiles(facts)) {
    const std::string name(WithoutQuery(file.path));
    const bool packed = IsCompressed(name);
    const std::string inner = packed ? name.substr(0, name.rfind('.')) : name;
    const auto& wrong = file.source->wrong_endings;
    if (!HasEnding(name, wrong) && !HasEnding(inner, wrong)) continue;
    problems.push_back(
        {file.field,
         absl::StrFormat("%s has the file name ending of another data.source", file.path),
         absl::StrCat("set data.source to what the file holds: ", SourcesWithFiles())});
  }
  return problems;
}

// A pattern that cannot be replaced by files.
Problems BadPatterns(const PreflightFacts& facts) {
  Problems problems;
  size_t count = 0;
  for (const DataFiles& files : AllDataFiles(facts.spec.data())) {
    for (size_t i = 0; i < files.paths.size(); ++i) {
      if (facts.abandoned()) return {};
      const auto& expanded = facts.paths->Expand(files.paths[i]);
      if (expanded.ok()) {
        count += expanded->size();
        if (count <= kMostMatches) continue;
        return {{files.FieldOf(i),
                 absl::StrFormat("%s: more than %d files with those before it", files.paths[i],
                                 kMostMatches),
                 "use fewer, larger files"}};
      }
      ProblemAndFix text = SplitFix(std::string(expanded.status().message()));
      problems.push_back({files.FieldOf(i), std::move(text.problem), std::move(text.fix)});
    }
  }
  return problems;
}

// The local files of a set but for prepared data. Call it only if the rules may look.
std::vector<NamedFile> PlainFiles(const PreflightFacts& facts, const DataFiles& files) {
  std::vector<NamedFile> named = FilesOf(facts, {files});
  std::erase_if(named, [&](const NamedFile& file) {
    return IsUrl(file.path) || !facts.paths->Expand(file.path).ok() || file.prepared();
  });
  return named;
}

bool IsEmpty(const NamedFile& file) { return JobFileBytes(file.path) == 0; }

// Whether some files of a set have data, here or at a URL: then others may be empty, as the shards
// are that a program writes without rows.
bool HasFilledFile(const PreflightFacts& facts, const DataFiles& files) {
  return std::ranges::any_of(FilesOf(facts, {files}),
                             [](const NamedFile& file) { return !IsEmpty(file); });
}

Problems Unreadable(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  Problems problems = BadPatterns(facts);
  for (const DataFiles& files : AllDataFiles(facts.spec.data())) {
    const bool filled = HasFilledFile(facts, files);
    for (const NamedFile& file : PlainFiles(facts, files)) {
      if (filled && IsEmpty(file)) continue;
      if (const auto fault = ReadFault(file.path)) {
        const bool folder = OpenJobFolder(file.path).ok();
        problems.push_back(
            {file.field, absl::StrFormat("%s: %s", file.path, *fault),
             folder ? absl::StrFormat("list its files, or name them by a pattern: '%s'",
                                      (std::filesystem::path(file.path) / "*.ext").string())
                    : std::string(kGiveReadableFile)});
      }
    }
  }
  return problems;
}

// One finding for the empty files of a set, if it has others.
Problems EmptyFiles(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  Problems problems;
  for (const DataFiles& files : AllDataFiles(facts.spec.data())) {
    std::vector<NamedFile> empty = PlainFiles(facts, files);
    const size_t all = empty.size();
    std::erase_if(empty, [](const NamedFile& file) { return !IsEmpty(file); });
    if (empty.empty() || !HasFilledFile(facts, files)) continue;
    problems.push_back(
        {empty.front().field,
         absl::StrFormat("%d of %d files have 0 bytes and are passed, the first is %s",
                         empty.size(), all, empty.front().path),
         "write them again if they should have data"});
  }
  return problems;
}

Problems BadUrl(const PreflightFacts& facts) {
  Problems problems;
  for (const NamedFile& file : AllFiles(facts)) {
    if (!IsUrl(file.path)) continue;
    const absl::Status status = CheckDataUrl(file.path);
    if (status.ok()) continue;
    ProblemAndFix text = SplitFix(std::string(status.message()));
    problems.push_back({file.field, std::move(text.problem), std::move(text.fix)});
  }
  return problems;
}

// One finding for all URLs.
Problems NotFetched(const PreflightFacts& facts) {
  std::vector<NamedFile> urls = AllFiles(facts);
  std::erase_if(urls, [](const NamedFile& file) { return !IsUrl(file.path); });
  if (urls.empty()) return {};
  const std::string others =
      urls.size() == 1 ? "" : absl::StrFormat(" and %d more", urls.size() - 1);
  return {{urls.front().field,
           absl::StrFormat("%s%s is not fetched here: size and kind are unknown, and the memory "
                           "estimate is without it",
                           urls.front().path, others),
           "the worker asks for every file before the first step; `nsactl validate --data` does "
           "it now"}};
}

// Whether a file is here and of this format.
bool IsHere(const NamedFile& file, DocumentFormat format) {
  return file.source->format == format && !IsUrl(file.path) && !ReadFault(file.path).has_value();
}

// A part of a file: up to `lines` lines of the `bytes` from byte `at` on.
struct Part {
  int64_t at = 0;
  int64_t bytes = 0;
  int64_t lines = std::numeric_limits<int64_t>::max();
};

constexpr int64_t kLongestFirstLine = 4 << 20;

// Whether a line is a document, or is left out by the filter. `format` is that of conversations.
absl::Status CheckLine(const NamedFile& file, const ChatFormat& format, std::string_view line) {
  NSA_ASSIGN_OR_RETURN(JsonLine record, JsonLine::Parse(line, file.conversations));
  FilterTally tally;
  if (!record.Passes(file.filter.get(), &tally)) return absl::OkStatus();
  if (!file.conversations) return record.TakeText(file.text_field).status();
  NSA_ASSIGN_OR_RETURN(const auto messages, record.TakeMessages(file.text_field));
  return messages ? RenderConversation(format, *messages).status() : absl::OkStatus();
}

// The first bad line of `text`, which is a part of a file, or nullopt. `to_end`: the file ends with
// it. Lines that lie half outside the part are passed.
std::optional<ProblemAndFix> FaultOfLines(const NamedFile& file, const ChatFormat& format,
                                          const Part& part, const std::string& text, bool to_end) {
  size_t begin = part.at == 0 ? 0 : text.find('\n');
  if (begin == std::string::npos) return std::nullopt;
  if (part.at > 0) ++begin;
  for (int64_t number = 1; begin < text.size() && number <= part.lines; ++number) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos && !to_end) break;
    end = std::min(end, text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const absl::Status status =
        IsBlankJsonLine(line) ? absl::OkStatus() : CheckLine(file, format, line);
    if (!status.ok()) {
      ProblemAndFix fault = SplitFix(std::string(status.message()));
      const std::string place =
          part.at == 0 ? absl::StrCat("line ", number)
                       : absl::StrCat("line at byte ", part.at + static_cast<int64_t>(begin));
      return ProblemAndFix{absl::StrCat(file.path, ": ", place, ": ", fault.problem), fault.fix};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

// Looks at the first line of a compressed file.
std::optional<ProblemAndFix> FaultOfPackedLines(const NamedFile& file, const ChatFormat& format) {
  std::string text = UnpackedHead(file.path, kSampleBytes);
  if (text.find('\n') == std::string::npos) text = UnpackedHead(file.path, kLongestFirstLine);
  return FaultOfLines(file, format, {.lines = 1}, text, /*to_end=*/false);
}

// Looks at the beginning of an uncompressed file, its middle and its end; of further files at the
// first line. Only the worker looks at the rest.
std::optional<ProblemAndFix> FaultOfJsonLines(const NamedFile& file, const ChatFormat& format,
                                              bool further) {
  constexpr int64_t kBeginning = 1 << 20;
  if (IsCompressed(file.path)) return further ? std::nullopt : FaultOfPackedLines(file, format);
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(file.path, error));
  if (error) return std::nullopt;
  const auto look = [&](const Part& part) {
    const std::string text = FilePart(file.path, part.at, part.bytes);
    return FaultOfLines(file, format, part, text, part.at + std::ssize(text) >= size);
  };
  if (further) return look({.bytes = kSampleBytes, .lines = 1});
  std::vector<Part> parts = {{.bytes = kBeginning},
                             {.bytes = kLongestFirstLine, .lines = 1},
                             {.at = size / 2, .bytes = kSampleBytes},
                             {.at = size - kSampleBytes, .bytes = kSampleBytes}};
  if (size <= kBeginning) parts.resize(1);
  for (const Part& part : parts) {
    if (auto fault = look(part)) return fault;
  }
  return std::nullopt;
}

Problems NotJsonLines(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  ChatFormat format;
  if (LearnsAnswers(facts.spec.data())) {
    absl::StatusOr<ChatFormat> chat = ChatFormatOf(facts.spec.data());
    if (!chat.ok()) return {};  // LOSS_ON reports it
    format = *std::move(chat);
  }
  Problems problems;
  int looked_at = 0;
  for (const NamedFile& file : AllFiles(facts)) {
    if (!IsHere(file, DocumentFormat::kLines)) continue;
    if (auto fault = FaultOfJsonLines(file, format, ++looked_at > kMostSampledFiles)) {
      problems.push_back({file.field, std::move(fault->problem), std::move(fault->fix)});
    }
  }
  return problems;
}

// What is wrong with the first or last bytes of a file, or nullopt. Only the worker reads more.
std::optional<std::string> FaultOfEnds(const NamedFile& file) {
  const int64_t size = JobFileBytes(file.path).value_or(0);
  const std::string tail =
      FilePart(file.path, std::max<int64_t>(size - kFileHeadBytes, 0), kSampleBytes);
  return FaultOfMark(file.source->source, FilePart(file.path, 0, kFileHeadBytes), tail);
}

// Whether a footer has the columns of a conversation: those of the list of messages, or a prompt
// and a completion.
absl::Status FindConversation(std::string_view footer, std::string_view messages) {
  const auto find = [&](std::string_view first, std::string_view second, bool list) {
    absl::Status status;
    for (const std::string_view name : {first, second}) {
      status.Update((list ? parquet::FindFieldOfList(footer, messages, name)
                          : parquet::FindTextColumn(footer, name))
                        .status());
    }
    return status;
  };
  const absl::Status list = find("role", "content", true);
  return absl::IsInvalidArgument(list) && find(kPromptField, kCompletionField, false).ok()
             ? absl::OkStatus()
             : list;
}

// Whether a Parquet file has the column of texts. A footer that is large or damaged is left to the
// worker.
absl::Status CheckColumn(const NamedFile& file) {
  constexpr int64_t kMostFooter = 8 << 20;
  const std::string footer = ParquetFooter(file.path, kMostFooter);
  if (footer.empty()) return absl::OkStatus();
  const absl::Status status = file.conversations
                                  ? FindConversation(footer, file.text_field)
                                  : parquet::FindTextColumn(footer, file.text_field).status();
  return absl::IsInvalidArgument(status) ? status : absl::OkStatus();
}

Problems NotParquet(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  Problems problems;
  int looked_at = 0;
  for (const NamedFile& file : AllFiles(facts)) {
    if (!IsHere(file, DocumentFormat::kRows)) continue;
    if (const auto fault = FaultOfEnds(file)) {
      problems.push_back({file.field, absl::StrFormat("%s: %s", file.path, *fault),
                          "copy the file again, or set data.source to what the file holds"});
      continue;
    }
    if (++looked_at > kMostSampledFiles) continue;
    if (const absl::Status status = CheckColumn(file); !status.ok()) {
      ProblemAndFix text = SplitFix(std::string(status.message()));
      problems.push_back(
          {file.field, absl::StrCat(file.path, ": ", text.problem), std::move(text.fix)});
    }
  }
  return problems;
}

// What is wrong with a folder of prepared data.
absl::Status CheckPreparedFolder(const NamedFile& file, const PreflightFacts& facts) {
  NSA_ASSIGN_OR_RETURN(const v1::PreparedManifest manifest, ReadPrepared(file.path));
  NSA_RETURN_IF_ERROR(CheckPreparedFiles(file.path, manifest));
  return CheckPreparedFor(file.path, manifest, facts.spec.data(), VocabOf(facts.spec));
}

Problems BadPrepared(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  Problems problems;
  for (const NamedFile& file : AllFiles(facts)) {
    if (!file.prepared()) continue;
    const absl::Status status = CheckPreparedFolder(file, facts);
    if (status.ok()) continue;
    ProblemAndFix text = SplitFix(std::string(status.message()));
    problems.push_back({file.field, std::move(text.problem), std::move(text.fix)});
  }
  return problems;
}

// Whether this is data that `nsactl data prepare` has tokenized; its manifest names the separator.
bool IsPreparedData(const std::string& path) {
  return path.ends_with(kPreparedEnding) || IsPreparedFolder(path);
}

// Whether this is prepared data, or a Megatron file, whose index says where its documents begin.
// Also true for a .bin file that cannot be looked at: DATA_UNREADABLE reports it, and its volume
// may only be unmounted.
bool KnowsDocuments(const std::string& path, const PreflightFacts& facts) {
  std::filesystem::path index(path);
  if (IsPreparedData(path)) return true;
  if (index.extension() != ".bin") return false;
  std::error_code error;
  return IsUrl(path) || !facts.context.check_files || ReadFault(path).has_value() ||
         std::filesystem::exists(index.replace_extension(".idx"), error);
}

// The sets of files that hold tokens.
std::vector<DataFiles> Tokens(const v1::DataSpec& data) {
  std::vector<DataFiles> all = AllDataFiles(data);
  std::erase_if(all, [](const DataFiles& files) {
    return DataSourceInfoOf(files.source).format != DocumentFormat::kTokens;
  });
  return all;
}

Problems MissingSeparator(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (data.tokenizer() != v1::TOKENIZER_UNSPECIFIED) return {};
  for (const NamedFile& file : FilesOf(facts, Tokens(data))) {
    if (KnowsDocuments(file.path, facts)) continue;
    return {{"data.separator",
             absl::StrFormat("not set (%s does not say where its documents begin)", file.path),
             std::string(kSetSeparator)}};
  }
  if (!data.document_mask()) return {};
  return {{"data.separator", "not set (document_mask needs it)", std::string(kSetSeparator)}};
}

Problems WrongSeparator(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  const absl::StatusOr<int32_t> separator = ParseSeparator(data.separator());
  if (!separator.ok()) {
    return {{"data.separator",
             absl::StrFormat("'%s' (must be a token from 0 to 1048575, or none)", data.separator()),
             "write the token between documents; GPT-2's is 50256"}};
  }
  if (*separator == kNoSeparator && data.document_mask()) {
    return {{"data.separator", "none, but document_mask is true (it needs a separator)",
             "set document_mask: false, or name the separator"}};
  }
  const int32_t vocab = VocabOf(facts.spec);
  if (*separator < vocab) return {};
  return {{"data.separator", absl::StrFormat("%d (below model.vocab, %d)", *separator, vocab),
           "set model.vocab to that of the tokenizer that wrote the files"}};
}

Problems Separator(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  const bool tokens = ReadsOnlyTokens(data);
  if (!data.has_separator()) return tokens ? MissingSeparator(facts) : Problems();
  if (tokens) return WrongSeparator(facts);
  return {{"data.separator",
           absl::StrFormat("%s (only for source: tokens; the tokenizer of a text has its own)",
                           data.separator()),
           "remove it"}};
}

// Whether the worker reads the tokenizer's files: for text, for the texts that it samples, and for
// the separator of token files that neither the job nor prepared data names.
bool NeedsTokenizer(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (IsGenerated(data)) return false;
  if (ReadsText(data) || !facts.spec.sample().prompts().empty()) return true;
  if (data.has_separator()) return false;
  return std::ranges::none_of(FilesOf(facts, Tokens(data)), IsPreparedData, &NamedFile::path);
}

Problems TokenizerMissing(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (!HasTokenizerFiles(data.tokenizer()) || !NeedsTokenizer(facts)) return {};
  const std::string files = TokenizerFileWords(data.tokenizer());
  if (data.tokenizer_path().empty()) {
    return {{"data.tokenizer_path", absl::StrFormat("not set (%s)", files),
             "set it, or use tokenizer: byte"}};
  }
  Problems problems;
  if (!facts.context.check_files) return {};
  const std::vector<std::filesystem::path> paths =
      TokenizerFilesOf(data.tokenizer(), data.tokenizer_path());
  for (const std::filesystem::path& path : paths) {
    if (const auto fault = ReadFault(path.string())) {
      problems.push_back({"data.tokenizer_path", absl::StrFormat("%s: %s", path.string(), *fault),
                          absl::StrCat("name ", files)});
    }
  }
  const bool vocab_and_merges = paths.size() > 1;  // GPT-2's two files
  if (!problems.empty() || vocab_and_merges) return problems;
  const auto tokens = ReadTokenizerFacts(paths.front());
  if (tokens.ok() && tokens->separator_id >= 0) return {};
  return {{"data.tokenizer_path",
           tokens.ok() ? absl::StrCat(paths.front().string(), ": no token ", SeparatorWords(),
                                      " (one begins a document)")
                       : std::string(tokens.status().message()),
           absl::StrCat("name ", files)}};
}

constexpr PreflightRule kDataRules[] = {
    {"DATA_PATH_MISSING", "the source reads files, but the job lists none", kError, kError, false,
     kNothing, PathMissing},
    {"DATA_PATH_IGNORED", "the job lists files, but the source generates tokens", kError, kError,
     true, kNothing, PathIgnored},
    {"DATA_KIND_MISMATCH", "a file name ending belongs to another data.source", kError, kError,
     true, kNothing, KindMismatch},
    {"DATA_NOT_JSONL", "a line of a jsonl file is not a document", kError, kError, false, kNothing,
     NotJsonLines},
    {"DATA_NOT_PARQUET",
     "a file of source: parquet does not begin and end as one, or has no text_field", kError,
     kError, false, kNothing, NotParquet},
    {"DATA_URL", "a URL of the data cannot be read", kError, kError, false, kNothing, BadUrl},
    {"DATA_NOT_FETCHED", "data comes from a URL, which only the worker reads", kInfo, kInfo, true,
     kNothing, NotFetched},
    {"DATA_UNREADABLE", "a data file cannot be read, or a pattern has no files", kError, kError,
     false, kNothing, Unreadable, kMayPass},
    {"DATA_EMPTY_FILES", "some files of a set, but not all, have 0 bytes", kInfo, kInfo, true,
     kNothing, EmptyFiles},
    {"DATA_PREPARED", "a folder of tokens is not prepared data, is damaged, or is not for this job",
     kError, kError, false, kNothing, BadPrepared, kMayPass},
    {"DATA_SEPARATOR", "the separator of token files is missing or wrong", kError, kError, false,
     kNothing, Separator},
    {"TOKENIZER_MISSING", "the files of tokenizer: gpt2 or bpe are missing or invalid", kError,
     kError, false, kNothing, TokenizerMissing, kMayPass},
};

}  // namespace

std::span<const PreflightRule> DataRules() { return kDataRules; }

}  // namespace nsa
