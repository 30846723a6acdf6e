// Rules about data: whether the files can be read, whether they hold enough text, and whether
// validation data is separate from training data.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/estimate/estimate.h"
#include "common/job/data_source.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

const DataSourceInfo& SourceOf(const v1::DataSpec& data) { return DataSourceInfoOf(data.source()); }

bool IsGenerated(const v1::DataSpec& data) { return !SourceOf(data).has_files(); }

struct NamedFile {
  std::string field;  // "data.path[0]"
  std::string path;
};

std::vector<NamedFile> Files(std::string_view field, const auto& paths) {
  std::vector<NamedFile> files;
  for (int i = 0; i < paths.size(); ++i) {
    files.push_back({absl::StrFormat("%s[%d]", std::string(field), i), paths[i]});
  }
  return files;
}

std::vector<NamedFile> AllFiles(const v1::DataSpec& data) {
  std::vector<NamedFile> files = Files("data.path", data.path());
  for (NamedFile& file : Files("data.val_path", data.val_path())) files.push_back(std::move(file));
  return files;
}

bool HasEnding(const std::string& path, std::span<const std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

bool IsCompressed(const std::string& path) {
  static constexpr std::string_view kEndings[] = {".gz", ".zst"};
  return HasEnding(path, kEndings);
}

Problems PathMissing(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (IsGenerated(data) || !data.path().empty()) return {};
  return {
      {"data.path", "no files (this data.source needs at least one)", "list the training files"}};
}

Problems PathIgnored(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (!IsGenerated(data) || (data.path().empty() && data.val_path().empty())) return {};
  return {{"data.source", "generates tokens, so the files that the job lists would not be read",
           absl::StrCat("set source to ", SourcesWithFiles(), ", or remove the files")}};
}

Problems KindMismatch(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  Problems problems;
  for (const NamedFile& file : AllFiles(data)) {
    if (!HasEnding(file.path, SourceOf(data).wrong_endings)) continue;
    problems.push_back(
        {file.field,
         absl::StrFormat("%s has the file name ending of another data.source", file.path),
         absl::StrCat("set data.source to what the file holds: ", SourcesWithFiles())});
  }
  return problems;
}

// Why a file cannot be read, or nullopt.
std::optional<std::string> ReadFault(const std::string& path) {
  if (path.find("://") != std::string::npos)
    return "is a URL (a local path); nothing is downloaded";
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return std::strerror(errno);
  struct stat info = {};
  const int failed = fstat(file.get(), &info);
  char byte = 0;
  const ssize_t got = S_ISREG(info.st_mode) ? read(file.get(), &byte, 1) : 0;
  if (failed != 0 || got < 0) return std::strerror(errno);
  if (S_ISDIR(info.st_mode)) return "is a folder (a file is needed)";
  if (!S_ISREG(info.st_mode)) return "is not a regular file";
  if (got == 0) return "is empty";
  return std::nullopt;
}

bool MayLook(const PreflightFacts& facts) {
  return facts.context.check_files && !IsGenerated(facts.spec.data());
}

Problems Unreadable(const PreflightFacts& facts) {
  Problems problems;
  const auto& data = facts.spec.data();
  for (const NamedFile& file : AllFiles(data)) {
    const bool address = file.path.find("://") != std::string::npos;
    if (!MayLook(facts) && !address) continue;
    if (const auto fault = ReadFault(file.path)) {
      problems.push_back(
          {file.field, absl::StrFormat("%s: %s", file.path, *fault),
           "give a file that exists and is readable on the machine that runs the job"});
    }
  }
  return problems;
}

// What is wrong with the first line of an uncompressed file, or nullopt. Preflight reads at most 4
// MiB of the file; only the worker checks a longer first line.
std::optional<std::string> FirstLineFault(const std::string& path, const DataSourceInfo& source) {
  constexpr std::streamsize kLongest = 4 << 20;
  std::string line(kLongest, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(line.data(), kLongest);
  line.resize(static_cast<size_t>(in.gcount()));
  const size_t begin = line.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return std::nullopt;
  const size_t end = line.find('\n', begin);
  if (end == std::string::npos && in.gcount() == kLongest) return std::nullopt;
  line = line.substr(begin, end - begin);
  const absl::StatusOr<std::string> text = source.text_of_line(line);
  if (text.ok()) return std::nullopt;
  return absl::StrCat("first line: ", text.status().message());
}

Problems BadFirstLine(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  const DataSourceInfo& source = SourceOf(data);
  if (!MayLook(facts) || source.format != DocumentFormat::kLines) return {};
  Problems problems;
  for (const NamedFile& file : AllFiles(data)) {
    if (IsCompressed(file.path) || ReadFault(file.path).has_value()) continue;
    if (const auto fault = FirstLineFault(file.path, source)) {
      problems.push_back({file.field,
                          absl::StrFormat("%s: %s (each line must be %s)", file.path, *fault,
                                          std::string(source.line_format)),
                          "fix the file, or set data.source to what the file holds"});
    }
  }
  return problems;
}

// Whether this is a Megatron file, whose index says where its documents begin. Also true for a .bin
// file that cannot be looked at: DATA_UNREADABLE reports it, and its volume may only be unmounted.
bool KnowsDocuments(const std::string& path, const PreflightFacts& facts) {
  std::filesystem::path index(path);
  if (index.extension() != ".bin") return false;
  std::error_code error;
  return !facts.context.check_files || ReadFault(path).has_value() ||
         std::filesystem::exists(index.replace_extension(".idx"), error);
}

Problems MissingSeparator(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (data.tokenizer() != v1::TOKENIZER_UNSPECIFIED) return {};
  for (const NamedFile& file : AllFiles(data)) {
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
             absl::StrFormat("'%s' (a token from 0 to 65535, or none)", data.separator()),
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
  const bool tokens = SourceOf(data).format == DocumentFormat::kTokens;
  if (!data.has_separator()) return tokens ? MissingSeparator(facts) : Problems();
  if (tokens) return WrongSeparator(facts);
  return {{"data.separator",
           absl::StrFormat("%s (only for source: tokens; the tokenizer of a text has its own)",
                           data.separator()),
           "remove it"}};
}

Problems TokenizerMissing(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (data.tokenizer() != v1::TOKENIZER_GPT2 || !SourceOf(data).has_text()) return {};
  if (data.tokenizer_path().empty()) {
    return {{"data.tokenizer_path", "not set (a folder with GPT-2's vocab.json and merges.txt)",
             "set it, or use tokenizer: byte"}};
  }
  Problems problems;
  for (const char* name : {"vocab.json", "merges.txt"}) {
    const std::string path = (std::filesystem::path(data.tokenizer_path()) / name).string();
    if (!facts.context.check_files) continue;
    if (const auto fault = ReadFault(path)) {
      problems.push_back({"data.tokenizer_path", absl::StrFormat("%s: %s", path, *fault),
                          "put GPT-2's vocab.json and merges.txt into that folder"});
    }
  }
  return problems;
}

// Bytes in the files, after decompression; roughly, if they are compressed. nullopt if the size of
// a file is unknown.
std::optional<double> TextBytes(const auto& paths) {
  double bytes = 0;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto size = static_cast<double>(std::filesystem::file_size(path, error));
    if (error) return std::nullopt;
    bytes += IsCompressed(path) ? kTextPerCompressedByte * size : size;
  }
  return bytes;
}

// Roughly how many tokens the files hold. Assumes that a GPT-2 token is four bytes.
std::optional<double> Tokens(const v1::DataSpec& data, const auto& paths) {
  const std::optional<double> bytes = TextBytes(paths);
  if (!bytes) return std::nullopt;
  if (!SourceOf(data).has_text()) return *bytes / 2;
  return data.tokenizer() == v1::TOKENIZER_GPT2 ? *bytes / 4 : *bytes;
}

Problems TooSmall(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (!MayLook(facts) || data.path().empty()) return {};
  const std::optional<double> have = Tokens(data, data.path());
  if (!have) return {};
  const auto& train = facts.spec.train();
  const double batch = 1.0 * train.batch_size() * (train.seq_len() + 1);
  if (*have < batch) {
    return {{"data.path",
             absl::StrFormat("about %s tokens (one batch takes %s)",
                             Grouped(static_cast<int64_t>(*have)),
                             Grouped(static_cast<int64_t>(batch))),
             "add text, or use a smaller batch_size or seq_len"}};
  }
  const double wanted =
      static_cast<double>(TokensPerStep(facts.spec)) * static_cast<double>(train.steps());
  if (data.on_exhausted() == v1::ON_EXHAUSTED_STOP && *have < wanted) {
    return {
        {"data.path",
         absl::StrFormat("about %.4g million tokens (%d steps need %.4g million, and on_exhausted "
                         "is stop)",
                         *have / 1e6, train.steps(), wanted / 1e6),
         "add text, train fewer steps, or set on_exhausted: repeat"}};
  }
  return {};
}

constexpr double kManyEpochs = 10;

Problems Repeated(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (!MayLook(facts) || data.path().empty() || data.on_exhausted() == v1::ON_EXHAUSTED_STOP) {
    return {};
  }
  const std::optional<double> have = Tokens(data, data.path());
  const double wanted = static_cast<double>(TokensPerStep(facts.spec)) *
                        static_cast<double>(facts.spec.train().steps());
  if (!have || *have <= 0 || wanted / *have <= kManyEpochs) return {};
  return {{"data.path",
           absl::StrFormat("every token would be read about %.0f times (at most %.0f)",
                           wanted / *have, kManyEpochs),
           "add text or train fewer steps"}};
}

Problems Synthetic(const PreflightFacts& facts) {
  if (!IsGenerated(facts.spec.data())) return {};
  return {
      {"data.source",
       absl::StrFormat("generates tokens (%s): the model learns no language", SourcesWithFiles()),
       "choose one of these sources and list its files"}};
}

Problems SyntheticFallback(const PreflightFacts& facts) {
  if (!facts.spec.data().allow_synthetic_fallback()) return {};
  return {{"data.allow_synthetic_fallback",
           "true (false): if the source fails, the run continues on generated tokens",
           "set allow_synthetic_fallback: false"}};
}

bool SameBytes(const std::string& a, const std::string& b, const std::function<bool()>& abandoned) {
  std::ifstream in_a(a, std::ios::binary);
  std::ifstream in_b(b, std::ios::binary);
  std::vector<char> block_a(1 << 20);
  std::vector<char> block_b(1 << 20);
  while (in_a && in_b) {
    if (abandoned && abandoned()) return false;
    in_a.read(block_a.data(), static_cast<std::streamsize>(block_a.size()));
    in_b.read(block_b.data(), static_cast<std::streamsize>(block_b.size()));
    if (in_a.gcount() != in_b.gcount() ||
        !std::equal(block_a.begin(), block_a.begin() + in_a.gcount(), block_b.begin())) {
      return false;
    }
  }
  return in_a.eof() && in_b.eof();
}

// Whether both names lead to the same text: the same path, the same file, or the same content.
// Contents are compared in files of up to 4 GiB.
bool SameText(const std::string& a, const std::string& b, const PreflightFacts& facts) {
  if (std::filesystem::path(a).lexically_normal() == std::filesystem::path(b).lexically_normal()) {
    return true;
  }
  if (!MayLook(facts)) return false;
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto size_a = std::filesystem::file_size(a, error);
  if (error) return false;
  const auto size_b = std::filesystem::file_size(b, error);
  if (error || size_a != size_b || size_a > (uintmax_t{4} << 30)) return false;
  return SameBytes(a, b, facts.context.abandoned);
}

Problems ValNotDisjoint(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  Problems problems;
  for (const NamedFile& val : Files("data.val_path", data.val_path())) {
    for (const std::string& train : data.path()) {
      if (!SameText(val.path, train, facts)) continue;
      problems.push_back({val.field,
                          absl::StrFormat("%s is also used for training (%s)", val.path, train),
                          "use validation files that are not in data.path, or set val_fraction"});
      break;
    }
  }
  return problems;
}

Problems ValAmbiguous(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (data.val_path().empty() || data.val_fraction() == 0) return {};
  return {{"data.val_fraction",
           absl::StrFormat("%g, but val_path is set too (only one of them may be)",
                           data.val_fraction()),
           "remove one"}};
}

Problems EvalWithoutData(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (facts.spec.train().eval_every() == 0 || IsGenerated(data)) return {};
  if (!data.val_path().empty() || data.val_fraction() > 0) return {};
  return {{"train.eval_every", "validation is on, but there is no validation data",
           "set data.val_path or data.val_fraction"}};
}

Problems EvalEveryTooLarge(const PreflightFacts& facts) {
  const auto& train = facts.spec.train();
  if (train.eval_every() <= train.steps()) return {};
  return {{"train.eval_every",
           absl::StrFormat("%d (at most steps, %d): the run never validates", train.eval_every(),
                           train.steps()),
           absl::StrFormat("set eval_every: %d", std::max<int64_t>(1, train.steps() / 10))}};
}

Problems EvalOff(const PreflightFacts& facts) {
  if (facts.spec.train().eval_every() > 0) return {};
  return {{"train.eval_every",
           "0 (more than 0): without validation, overfitting and bad data go unnoticed",
           absl::StrFormat("set eval_every: %d",
                           std::max<int64_t>(1, facts.spec.train().steps() / 50))}};
}

constexpr v1::Severity kError = v1::SEVERITY_ERROR;
constexpr v1::Severity kWarning = v1::SEVERITY_WARNING;
constexpr v1::Severity kInfo = v1::SEVERITY_INFO;
constexpr v1::Severity kOff = v1::SEVERITY_UNSPECIFIED;
constexpr auto kNothing = PreflightRule::kNothing;
constexpr MayPass kMayPass = MayPass::kYes;
constexpr auto kSizes = PreflightRule::kSizes;

constexpr PreflightRule kRules[] = {
    {"DATA_PATH_MISSING", "the source reads files, but the job lists none", kError, kError, false,
     kNothing, PathMissing},
    {"DATA_PATH_IGNORED", "the job lists files, but the source generates tokens", kError, kError,
     true, kNothing, PathIgnored},
    {"DATA_KIND_MISMATCH", "a file name ending belongs to another data.source", kError, kWarning,
     true, kNothing, KindMismatch},
    {"DATA_NOT_JSONL", "the first line of a jsonl file is not a document", kError, kError, false,
     kNothing, BadFirstLine},
    {"DATA_UNREADABLE", "a data file cannot be read", kError, kError, false, kNothing, Unreadable,
     kMayPass},
    {"DATA_SEPARATOR", "the separator of token files is missing or wrong", kError, kError, false,
     kNothing, Separator},
    {"TOKENIZER_MISSING", "tokenizer: gpt2, but its files are missing", kError, kError, false,
     kNothing, TokenizerMissing, kMayPass},
    {"DATA_TOO_SMALL", "fewer tokens than one batch, or than the whole run with on_exhausted: stop",
     kError, kError, true, kSizes, TooSmall},
    {"DATA_REPEATED", "the run reads every token more than ten times", kWarning, kInfo, true,
     kSizes, Repeated},
    {"DATA_SYNTHETIC", "the source generates tokens", kError, kInfo, true, kNothing, Synthetic},
    {"DATA_SYNTHETIC_FALLBACK", "generated tokens replace a source that fails", kError, kWarning,
     true, kNothing, SyntheticFallback},
    {"VAL_NOT_DISJOINT", "a validation file is also used for training", kError, kError, true,
     kNothing, ValNotDisjoint},
    {"VAL_AMBIGUOUS", "val_path and val_fraction are both set", kError, kError, false, kNothing,
     ValAmbiguous},
    {"EVAL_WITHOUT_DATA", "validation is on, but there is no validation data", kError, kError,
     false, kNothing, EvalWithoutData},
    {"EVAL_EVERY_TOO_LARGE", "eval_every is more than steps", kWarning, kWarning, true, kNothing,
     EvalEveryTooLarge},
    {"EVAL_OFF", "validation is off", kWarning, kOff, true, kNothing, EvalOff},
};

}  // namespace

std::span<const PreflightRule> DataRules() { return kRules; }

int64_t CorpusMemory(const PreflightFacts& facts) {
  if (!MayLook(facts)) return 0;
  const std::optional<double> train = TextBytes(facts.spec.data().path());
  const std::optional<double> val = TextBytes(facts.spec.data().val_path());
  if (!train || !val) return 0;  // DATA_UNREADABLE reports it
  return static_cast<int64_t>(kHostBytesPerTextByte * (*train + *val));
}

}  // namespace nsa
