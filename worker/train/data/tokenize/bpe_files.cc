#include "worker/train/data/tokenize/bpe_files.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/job/data/tokenizer_files.h"
#include "worker/train/data/tokenize/split_pattern.h"
#include "worker/train/data/tokenize/vocabulary.h"

namespace nsa::train {

SplitStep KnownSplit(std::string_view pattern) {
  return {.pattern = *Pcre2Pattern(pattern), .ascii = AsciiSplitOf(pattern)};
}

absl::StatusOr<BpeFiles> ReadGpt2Files(const std::filesystem::path& folder) {
  BpeFiles files;
  files.split = {KnownSplit(kGpt2Pattern)};
  const std::filesystem::path vocab = folder / "vocab.json";
  NSA_ASSIGN_OR_RETURN(const nlohmann::json tokens, ReadTokenizerObject(vocab));
  Vocabulary vocabulary(vocab, &files);
  NSA_RETURN_IF_ERROR(vocabulary.AddAll(tokens));
  NSA_RETURN_IF_ERROR(vocabulary.Finish(/*gaps=*/false));
  files.separator = kEndOfText;
  if (files.ids.count(files.separator) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(vocab.string(), ": no ", files.separator));
  }
  files.added_texts.insert(files.separator);
  const std::filesystem::path merges = folder / "merges.txt";
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadTokenizerText(merges));
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");  // git's autocrlf
    if (line.empty() || absl::StartsWith(line, "#version")) continue;
    std::vector<std::string> parts = absl::StrSplit(line, ' ');
    parts.resize(2);
    if (std::count(line.begin(), line.end(), ' ') != 1) parts = {std::string(line), ""};
    NSA_RETURN_IF_ERROR(AddMerge(std::move(parts[0]), std::move(parts[1]),
                                 absl::StrCat(merges.string(), ":", number), &files));
  }
  return files;
}

}  // namespace nsa::train
