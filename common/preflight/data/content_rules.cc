// Rules about what the files of the data hold, by their first bytes and some in between: another
// kind of file, or text of another encoding. The worker looks at compressed and remote files.
#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/base/job_file.h"
#include "common/estimate/estimate.h"
#include "common/job/data/file_kind.h"
#include "common/job/data/token_sample.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data/url.h"
#include "common/preflight/data/data_facts.h"

namespace nsa {
namespace {

// The local files of the data.
std::vector<NamedFile> LocalFiles(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  std::vector<NamedFile> files = AllFiles(facts);
  std::erase_if(files, [](const NamedFile& file) {
    return IsUrl(file.path) || file.prepared() || ReadFault(file.path).has_value();
  });
  return files;
}

bool IsPlainText(const NamedFile& file) {
  const DocumentFormat format = file.source->format;
  return (format == DocumentFormat::kText || format == DocumentFormat::kLines) &&
         !IsCompressed(file.path);
}

std::optional<ProblemAndFix> WrongContent(const NamedFile& file) {
  const std::string head =
      FilePart(file.path, 0, IsPlainText(file) ? kSampleBytes : kFileHeadBytes);
  if (const auto stranger = FindStranger(file.path, head)) {
    return ProblemAndFix{std::string(stranger->name), std::string(stranger->remedy)};
  }
  if (!IsPlainText(file)) return std::nullopt;
  const FileKindInfo info = RecogniseFile(std::string_view(head).substr(0, kFileHeadBytes),
                                          JobFileBytes(file.path).value_or(0));
  if (info.kind == FileKind::kText) return std::nullopt;
  if (!IsReadAsText(info.kind)) {
    return ProblemAndFix{absl::StrCat(std::string(info.name), ", not text"),
                         "give a file of text or of JSON lines, or set data.source to what it is"};
  }
  const auto fault = info.kind == FileKind::kUnknown ? FaultOfText(head) : std::nullopt;
  if (!fault.has_value()) return std::nullopt;
  return ProblemAndFix{fault->what, fault->remedy};
}

// Files of a tokenizer are read whole, so that other mistakes in them are found there.
void AddTokenizerFiles(const PreflightFacts& facts, Problems* problems) {
  const auto& data = facts.spec.data();
  if (!facts.context.check_files || !HasTokenizerFiles(data.tokenizer())) return;
  for (const auto& path : TokenizerFilesOf(data.tokenizer(), data.tokenizer_path())) {
    if (ReadFault(path).has_value()) continue;
    const auto stranger = FindStranger(path.native(), FilePart(path, 0, kFileHeadBytes));
    if (!stranger) continue;
    problems->push_back({"data.tokenizer_path",
                         absl::StrFormat("%s is %s", path.string(), std::string(stranger->name)),
                         std::string(stranger->remedy)});
  }
}

Problems WrongFile(const PreflightFacts& facts) {
  Problems problems;
  for (const NamedFile& file : LocalFiles(facts)) {
    if (auto wrong = WrongContent(file)) {
      problems.push_back(
          {file.field, absl::StrFormat("%s is %s", file.path, wrong->problem), wrong->fix});
    }
  }
  AddTokenizerFiles(facts, &problems);
  return problems;
}

// The largest of the beginning, middle and end of a file.
double ShareNotUtf8Of(const std::string& path) {
  const int64_t size = JobFileBytes(path).value_or(0);  // it may be gone by now
  double share = 0;
  for (const int64_t at : {int64_t{0}, size / 2, std::max<int64_t>(0, size - kSampleBytes)}) {
    share = std::max(share, ShareNotUtf8(FilePart(path, at, kSampleBytes)));
  }
  return share;
}

Problems NotUtf8(const PreflightFacts& facts) {
  Problems problems;
  int looked_at = 0;
  for (const NamedFile& file : LocalFiles(facts)) {
    if (looked_at == kMostSampledFiles) break;
    if (!IsPlainText(file) || WrongContent(file).has_value()) continue;
    ++looked_at;
    const double share = ShareNotUtf8Of(file.path);
    if (share <= kMostNotUtf8) continue;
    problems.push_back(
        {file.field,
         absl::StrFormat("%.0f %% of the bytes of %s from 0x80 on are not UTF-8 (at most %.0f %%)",
                         100 * share, file.path, 100 * kMostNotUtf8),
         std::string(kConvertToUtf8)});
  }
  return problems;
}

Problems BadTokens(const PreflightFacts& facts) {
  constexpr int kMostFiles = 32;
  const int32_t vocab = VocabOf(facts.spec);
  Problems problems;
  std::optional<TokenSample> largest;
  std::string where;
  int looked_at = 0;
  for (const NamedFile& file : LocalFiles(facts)) {
    if (file.source->format != DocumentFormat::kTokens || looked_at == kMostFiles) continue;
    if (facts.abandoned()) break;
    if (WrongContent(file).has_value()) continue;
    ++looked_at;
    const absl::StatusOr<TokenSample> sample = SampleTokens(file.path);
    if (!sample.ok()) {
      ProblemAndFix text = SplitFix(std::string(sample.status().message()));
      problems.push_back({file.field, std::move(text.problem), std::move(text.fix)});
    } else if (sample->largest >= vocab && (!largest || sample->largest > largest->largest)) {
      largest = *sample;
      where = file.path;
    }
  }
  if (!largest) return problems;
  problems.push_back(
      {"model.vocab",
       absl::StrFormat("%d (token %s of %s is %d, the largest of %s that were looked at)", vocab,
                       Grouped(largest->position), where, largest->largest,
                       Grouped(largest->looked_at)),
       absl::StrFormat("set model.vocab to that of the tokenizer that wrote the files, at least "
                       "%d; without model.vocab and data.tokenizer it is 256",
                       largest->largest + 1)});
  return problems;
}

constexpr PreflightRule kContentRules[] = {
    {"DATA_WRONG_FILE",
     "a file is a Git LFS pointer, a web page, an image or an archive, or UTF-16 text", kError,
     kError, false, kNothing, WrongFile, kMayPass},
    {"DATA_TOKENS", "a token file has a wrong header, or tokens that are not below model.vocab",
     kError, kError, false, kNothing, BadTokens, kMayPass},
    {"DATA_NOT_UTF8", "a text is in another encoding than UTF-8", kError, kWarning, true, kNothing,
     NotUtf8},
};

}  // namespace

std::span<const PreflightRule> ContentRules() { return kContentRules; }

}  // namespace nsa
