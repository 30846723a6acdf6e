// Rules about the fields of documents, about several sources (data.mix), about streams
// (data.stream) and about named validation sets (data.val).
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"
#include "common/base/limits.h"
#include "common/job/data/conversations.h"
#include "common/job/enum_words.h"
#include "common/preflight/data/data_facts.h"

namespace nsa {
namespace {

constexpr int kMostSources = 64;
constexpr int kMostSets = 32;
constexpr size_t kLongestName = 63;
constexpr size_t kLongestField = 1000;
constexpr double kLargestWeight = 1e6;
constexpr double kSmallestShare = 0.001;  // a sequence of the 1,000 of a period

// "jsonl and parquet".
std::string SourcesWithFields() {
  std::vector<std::string> words;
  const google::protobuf::EnumDescriptor& all = *v1::DataSource_descriptor();
  for (int i = 0; i < all.value_count(); ++i) {
    const auto source = static_cast<v1::DataSource>(all.value(i)->number());
    if (DataSourceInfoOf(source).has_fields()) words.push_back(EnumWord(*all.value(i)));
  }
  return absl::StrJoin(words, " and ");
}

void CheckField(const std::string& field, const std::string& value, bool used, Problems* problems) {
  if (value.empty() || value.size() > kLongestField) {
    problems->push_back({field, absl::StrFormat("%d bytes (from 1 to 1,000)", value.size()),
                         "write the name of the field that has the text"});
  } else if (!used) {
    problems->push_back({field,
                         absl::StrFormat("'%s' (only for %s)", Shown(value), SourcesWithFields()),
                         "remove it"});
  }
}

// data.text_field is for data.path, data.val_path and data.val; a source of a mixture has its own.
Problems TextField(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  Problems problems;
  if (data.has_text_field()) {
    std::vector<DataFiles> all = AllDataFiles(data);
    all.erase(all.begin(), all.begin() + data.mix_size());
    const bool used = std::ranges::any_of(
        all, [](const DataFiles& files) { return DataSourceInfoOf(files.source).has_fields(); });
    CheckField("data.text_field", data.text_field(), used, &problems);
  }
  for (int i = 0; i < data.mix_size(); ++i) {
    const v1::MixSource& mix = data.mix(i);
    if (!mix.has_text_field()) continue;
    CheckField(absl::StrFormat("data.mix[%d].text_field", i), mix.text_field(),
               DataSourceInfoOf(mix.source()).has_fields(), &problems);
  }
  return problems;
}

void CheckName(const std::string& field, std::string_view name, Problems* problems) {
  if (limits::IsPlainName(name, kLongestName)) return;
  problems->push_back({field,
                       absl::StrFormat("'%s' (1 to 63 letters, digits, -, _ and ., the first one "
                                       "a letter, a digit or _)",
                                       Shown(name)),
                       "give it such a name"});
}

void CheckSource(const std::string& field, const v1::MixSource& mix, double weights,
                 Problems* problems) {
  CheckName(absl::StrCat(field, ".name"), mix.name(), problems);
  if (!DataSourceInfoOf(mix.source()).has_files()) {
    problems->push_back({absl::StrCat(field, ".source"), "not a source that reads files",
                         absl::StrCat("set it to ", SourcesWithFiles())});
  }
  const double weight = mix.weight();
  if (!(weight > 0 && weight <= kLargestWeight)) {
    problems->push_back(
        {absl::StrCat(field, ".weight"),
         mix.has_weight()
             ? absl::StrFormat("%s (above 0, at most %s)", Number(weight), Number(kLargestWeight))
             : absl::StrFormat("not set (above 0, at most %s)", Number(kLargestWeight)),
         "set the source's share of the sequences, relative to the others"});
  } else if (weight / weights < kSmallestShare) {
    problems->push_back({absl::StrCat(field, ".weight"),
                         absl::StrFormat("%s is %.2g of the sum (at least %s)", Number(weight),
                                         weight / weights, Number(kSmallestShare)),
                         "give the source a larger weight, or leave it out"});
  }
}

// What the rest of `data` must not say beside a mixture.
void CheckRest(const v1::DataSpec& data, Problems* problems) {
  if (data.source() != v1::DATA_SOURCE_UNSPECIFIED || !data.path().empty()) {
    problems->push_back({data.path().empty() ? "data.source" : "data.path",
                         "set, but data.mix is set too (only one of them may be)", "remove one"});
  }
  if (data.on_exhausted() == v1::ON_EXHAUSTED_STOP) {
    problems->push_back({"data.on_exhausted",
                         "stop (repeat): the sources of data.mix end at different times",
                         "set on_exhausted: repeat"});
  }
  if (data.mix_size() > kMostSources) {
    problems->push_back({"data.mix",
                         absl::StrFormat("%d sources (at most %d)", data.mix_size(), kMostSources),
                         "join some of them"});
  }
}

Problems Mix(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (data.mix().empty()) return {};
  Problems problems;
  CheckRest(data, &problems);
  std::set<std::string> names;
  double weights = 0;
  for (const v1::MixSource& mix : data.mix()) weights += mix.weight();
  for (int i = 0; i < data.mix_size(); ++i) {
    const std::string field = absl::StrFormat("data.mix[%d]", i);
    CheckSource(field, data.mix(i), weights, &problems);
    if (names.insert(data.mix(i).name()).second) continue;
    problems.push_back(
        {absl::StrCat(field, ".name"),
         absl::StrFormat("'%s' is the name of an earlier source too", Shown(data.mix(i).name())),
         "give each source a name of its own"});
  }
  return problems;
}

Problems ValSets(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  Problems problems;
  if (data.val_size() > kMostSets) {
    problems.push_back({"data.val",
                        absl::StrFormat("%d sets (at most %d)", data.val_size(), kMostSets),
                        "join some of them"});
  }
  for (const DataFiles& files : NamedValidationFiles(data)) {
    CheckName(absl::StrCat("data.val.", Shown(files.name)), files.name, &problems);
    if (files.paths[0].empty()) problems.push_back({files.field, "no file", "name one"});
  }
  if (!data.val().empty() && data.tokenizer() == v1::TOKENIZER_UNSPECIFIED) {
    problems.push_back({"data.val", "text, but data.tokenizer is not set (token files have none)",
                        "set data.tokenizer to the one that wrote the token files"});
  }
  return problems;
}

Problems Stream(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (!data.stream()) {
    if (!data.has_shuffle_window()) return {};
    return {{"data.shuffle_window", "set, but data.stream is not true",
             "remove the key, or set stream: true"}};
  }
  if (IsGenerated(data)) {
    return {{"data.stream",
             absl::StrFormat("true, but the source has no files (%s)", SourcesWithFiles()),
             "remove stream"}};
  }
  Problems problems;
  for (const NamedFile& file : FilesOf(facts, TrainingFiles(data))) {
    if (!MayLook(facts) || !file.prepared()) continue;
    problems.push_back(
        {file.field,
         absl::StrFormat("%s is prepared data (data.stream reads files)", Shown(file.path)),
         "remove stream: prepared data is mapped, and a start takes a second"});
  }
  return problems;
}

Problems LossOn(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (!LearnsAnswers(data)) return {};
  const char* const key = "data.loss_on";
  if (!data.mix().empty()) {
    return {{key, "assistant, but data.mix is set (only one of them may be)",
             "list the files of all sources in data.path"}};
  }
  if (data.stream()) {
    return {{key, "assistant, but data.stream is true (conversations are packed into sequences)",
             "remove stream"}};
  }
  Problems problems;
  for (const DataFiles& files : AllDataFiles(data)) {
    const DataSourceInfo& source = DataSourceInfoOf(files.source);
    if (source.has_fields() || source.format == DocumentFormat::kTokens) continue;
    problems.push_back({files.field,
                        "has no conversations (data.loss_on: assistant needs jsonl or parquet)",
                        "write one JSON object with messages per line, or remove loss_on"});
  }
  for (const NamedFile& file : AllFiles(facts)) {
    if (!MayLook(facts) || file.source->format != DocumentFormat::kTokens || file.prepared()) {
      continue;
    }
    problems.push_back(
        {file.field,
         absl::StrFormat("%s is a token file (its answers are not marked)", Shown(file.path)),
         "use the conversations themselves, or a folder of `nsactl data prepare`"});
  }
  if (!MayLook(facts) || !ReadsText(data)) return problems;
  if (const absl::Status status = ChatFormatOf(data).status(); !status.ok()) {
    ProblemAndFix text = SplitFix(std::string(status.message()));
    problems.push_back({"data.tokenizer_path", std::move(text.problem), std::move(text.fix)});
  }
  return problems;
}

constexpr PreflightRule kMixRules[] = {
    {"LOSS_ON", "loss_on: assistant without conversations, or with a chat format that is not known",
     kError, kError, false, kNothing, LossOn},
    {"DATA_TEXT_FIELD", "a text_field is empty, or its source has no fields", kError, kError, false,
     kNothing, TextField},
    {"DATA_MIX", "a source of data.mix is incomplete, or data says something else beside it",
     kError, kError, false, kNothing, Mix},
    {"DATA_STREAM",
     "data.stream has no files to read or prepared data, or shuffle_window stands alone", kError,
     kError, false, kNothing, Stream},
    {"VAL_SETS", "a set of data.val has no valid name, no file or no tokenizer", kError, kError,
     false, kNothing, ValSets},
};

}  // namespace

std::span<const PreflightRule> MixRules() { return kMixRules; }

}  // namespace nsa
