// Rules about records that are chosen by their fields (data.where, data.except).
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/job/data/parquet/schema.h"
#include "common/job/data/url.h"
#include "common/preflight/data/data_facts.h"

namespace nsa {
namespace {

constexpr size_t kMostFields = 16;
constexpr size_t kMostValues = 1000;
constexpr size_t kLongest = 1000;  // bytes of a field's name and of a value

// data.where is one filter of two lists of files. The keys alone do not tell filters apart, since
// the names of sets and of fields may have dots.
using FilterId = std::pair<std::string, std::string>;

FilterId IdOf(const RecordFilter& filter) { return {filter.Keys(), filter.Identity()}; }

void CheckCondition(const FieldCondition& condition, Problems* problems) {
  const std::string key = Shown(condition.key());
  const std::vector<std::string>& values = condition.values();
  if (condition.name().empty() || condition.name().size() > kLongest) {
    problems->push_back(
        {key, absl::StrFormat("a field of %d bytes (from 1 to 1,000)", condition.name().size()),
         "write the name of a field"});
    return;
  }
  if (values.empty() || values.size() > kMostValues) {
    problems->push_back({key, absl::StrFormat("%d values (from 1 to 1,000)", values.size()),
                         "list the values that records have in this field"});
    return;
  }
  for (const std::string& value : values) {
    if (value.size() <= kLongest) continue;
    problems->push_back({key, absl::StrFormat("a value of %d bytes (at most 1,000)", value.size()),
                         "choose by a field with shorter values"});
    return;
  }
  if (const auto twice = condition.GivenTwice()) {
    problems->push_back({key, absl::StrFormat("'%s' is given twice", Shown(*twice)), "remove one"});
  }
}

void CheckFilterOf(const DataFiles& files, Problems* problems) {
  const std::vector<FieldCondition>& conditions = files.filter->conditions();
  if (conditions.size() > kMostFields) {
    problems->push_back({Shown(conditions.front().key()),
                         absl::StrFormat("one of %d fields (at most 16)", conditions.size()),
                         "name fewer fields"});
  }
  for (const FieldCondition& condition : conditions) CheckCondition(condition, problems);
}

// A name in data.val_where or data.val_except that data.val does not have.
void CheckSetNames(const std::string& key,
                   const google::protobuf::Map<std::string, v1::RecordFields>& filters,
                   const v1::DataSpec& data, Problems* problems) {
  for (const auto& [name, fields] : filters) {
    if (data.val().contains(name)) continue;
    problems->push_back({absl::StrCat(key, ".", Shown(name)), "no set of data.val has this name",
                         "name one of the sets, or remove it"});
  }
}

Problems Where(const PreflightFacts& facts) {
  const v1::DataSpec& data = facts.spec.data();
  Problems problems;
  CheckSetNames("data.val_where", data.val_where(), data, &problems);
  CheckSetNames("data.val_except", data.val_except(), data, &problems);
  std::map<FilterId, bool> used;  // whether files have fields
  for (const DataFiles& files : AllDataFiles(data)) {
    if (files.filter == nullptr) continue;
    const auto [filter, is_new] = used.try_emplace(IdOf(*files.filter), false);
    filter->second = filter->second || DataSourceInfoOf(files.source).has_fields();
    if (is_new) CheckFilterOf(files, &problems);
  }
  for (const auto& [id, is_used] : used) {
    if (is_used) continue;
    problems.push_back(
        {id.first, "set, but the files have no fields (only for jsonl and parquet)", "remove it"});
  }
  // Beside a mixture they are for data.val_path.
  if (data.mix().empty() || !data.val_path().empty()) return problems;
  if (data.where().empty() && data.except().empty()) return problems;
  problems.push_back({data.where().empty() ? "data.except" : "data.where",
                      "set beside data.mix, whose sources have their own, without data.val_path",
                      "set where and except of the sources"});
  return problems;
}

// The records of the files that a filter is for, as far as preflight reads them.
struct Looked {
  std::shared_ptr<const RecordFilter> filter;
  FilterTally tally;
  bool whole = true;  // all of them
};

std::map<FilterId, Looked> LookAtRecords(const PreflightFacts& facts) {
  std::map<FilterId, Looked> all;
  for (const DataFiles& files : AllDataFiles(facts.spec.data())) {
    if (files.filter == nullptr) continue;
    Looked& looked = all[IdOf(*files.filter)];
    looked.filter = files.filter;
    const std::vector<NamedFile> named = FilesOf(facts, {files});
    int sampled = 0;
    for (const NamedFile& file : named) {
      const bool lines = file.source->format == DocumentFormat::kLines && !IsUrl(file.path);
      if (!lines || sampled == kMostSampledFiles || facts.abandoned()) {
        looked.whole = false;
        continue;
      }
      const LineSample& sample = SampleOf(facts, file, named.size());
      looked.tally.Add(sample.tally);
      looked.whole = looked.whole && sample.whole;
      ++sampled;
    }
  }
  return all;
}

// Columns that a local Parquet file does not have, or not as texts.
void CheckColumns(const PreflightFacts& facts, Problems* problems) {
  constexpr int64_t kMostFooter = 8 << 20;
  int looked_at = 0;
  for (const NamedFile& file : AllFiles(facts)) {
    if (file.filter == nullptr || file.source->format != DocumentFormat::kRows) continue;
    if (IsUrl(file.path) || ++looked_at > kMostSampledFiles) continue;
    const std::string footer = ParquetFooter(file.path, kMostFooter);
    if (footer.empty()) continue;
    for (const FieldCondition& condition : file.filter->conditions()) {
      const absl::Status status =
          parquet::FindTextColumn(footer, condition.name(), condition.key()).status();
      if (!absl::IsInvalidArgument(status)) continue;
      ProblemAndFix text = SplitFix(std::string(status.message()));
      problems->push_back({Shown(condition.key()), absl::StrCat(file.path, ": ", text.problem),
                           std::move(text.fix)});
    }
  }
}

void Add(const std::vector<FilterFault>& faults, Problems* problems) {
  for (const FilterFault& fault : faults) {
    problems->push_back({Shown(fault.key), fault.problem, fault.fix});
  }
}

Problems WhereValues(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  Problems problems;
  CheckColumns(facts, &problems);
  for (const auto& [id, looked] : LookAtRecords(facts)) {
    Add(looked.whole ? looked.filter->FaultsIn(looked.tally)
                     : looked.filter->MissingFieldsIn(looked.tally),
        &problems);
  }
  return problems;
}

// A value may be rare, so that the first records have it not.
Problems WhereRare(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  Problems problems;
  for (const auto& [id, looked] : LookAtRecords(facts)) {
    if (!looked.whole) Add(looked.filter->MissingValuesIn(looked.tally), &problems);
  }
  return problems;
}

constexpr PreflightRule kFilterRules[] = {
    {"DATA_WHERE", "where or except has no values, or is for files without fields", kError, kError,
     false, kNothing, Where},
    {"DATA_WHERE_VALUES", "where or except names a field or a value that no record has", kError,
     kError, true, kNothing, WhereValues},
    {"DATA_WHERE_RARE", "where or except names a value that none of the first records has",
     kWarning, kWarning, true, kNothing, WhereRare},
};

}  // namespace

std::span<const PreflightRule> FilterRules() { return kFilterRules; }

}  // namespace nsa
