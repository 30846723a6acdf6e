#include "common/job/enum_words.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/job/did_you_mean.h"

namespace nsa {
namespace {

struct OldWord {
  std::string_view type;
  std::string_view word;
  std::string_view means;  // the present word, or empty if there is none
  std::string_view why;    // "what; fix" if `means` is empty
};

constexpr OldWord kOldWords[] = {
    {"Precision", "bfloat16", "bf16", ""},
    {"Precision", "float32", "fp32", ""},
    {"Precision", "fp16", "",
     "'fp16' is not supported (it needs loss scaling, and runs with it ended in NaN); write bf16"},
    {"Precision", "float16", "",
     "'float16' is not supported (it needs loss scaling, and runs with it ended in NaN); write "
     "bf16"},
    {"Device", "gpu", "cuda", ""},
    {"DataSource", "fineweb_edu", "",
     "'fineweb_edu' is not supported under this name; write source: parquet, stream: true and "
     "path: "
     "hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet"},
    {"DataSource", "fineweb_edu_local", "",
     "'fineweb_edu_local' is not supported under this name; write source: jsonl or text"},
};

// The prefix of the values' names, taken from the 0 value, whose name is the prefix and
// UNSPECIFIED: PRECISION_ for Precision, STATE_ for Job.State.
std::string_view Prefix(const google::protobuf::EnumDescriptor& type) {
  std::string_view name = type.value(0)->name();
  constexpr std::string_view kSuffix = "UNSPECIFIED";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : "";
}

}  // namespace

std::string EnumWord(const google::protobuf::EnumValueDescriptor& value) {
  const std::string_view prefix = Prefix(*value.type());
  const std::string_view name = value.name();
  const std::string_view rest = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  return absl::AsciiStrToLower(absl::string_view(rest.data(), rest.size()));
}

std::vector<std::string> EnumWords(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> words;
  for (int i = 1; i < type.value_count(); ++i) words.push_back(EnumWord(*type.value(i)));
  return words;
}

absl::StatusOr<int> ParseEnum(const google::protobuf::EnumDescriptor& type, std::string_view word) {
  for (const OldWord& old : kOldWords) {
    if (type.name() != old.type || word != old.word) continue;
    if (old.means.empty()) {
      return absl::InvalidArgumentError(absl::string_view(old.why.data(), old.why.size()));
    }
    word = old.means;
  }
  for (int i = 1; i < type.value_count(); ++i) {
    if (EnumWord(*type.value(i)) == word) return type.value(i)->number();
  }
  const std::vector<std::string> words = EnumWords(type);
  const std::string nearest = Nearest(word, words);
  return absl::InvalidArgumentError(absl::StrFormat(
      "'%s' is not one of %s; %s", CutText(word, 64), absl::StrJoin(words, ", "),
      nearest.empty() ? "write one of them" : absl::StrCat("did you mean '", nearest, "'?")));
}

}  // namespace nsa
