#include "common/job/data/record_filter.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/count.h"
#include "common/job/scalar.h"

namespace nsa {
namespace {

constexpr size_t kOthers = 5;  // values that a message names

std::string Records(int64_t count) {
  return absl::StrCat(Grouped(count), count == 1 ? " record" : " records");
}

std::string Shown(std::string_view text) { return CleanLine(CutText(text, 100)); }

// The number that a value of a job file is, in the form of NumberValue().
std::optional<std::string> NumberOf(const std::string& value) {
  if (const auto whole = ParseInteger(value, INT64_MIN, INT64_MAX); whole.ok()) {
    return NumberValue(*whole).text;
  }
  if (const auto whole = ParseUnsigned(value, UINT64_MAX); whole.ok()) {
    return NumberValue(*whole).text;
  }
  const auto number = ParseDouble(value);
  if (!number.ok()) return std::nullopt;
  return NumberValue(*number).text;
}

// "the first 300 records", of which there are more.
std::string FirstRecords(int64_t count) { return absl::StrCat("the first ", Records(count)); }

// "one of its 3 values".
std::string AnyOf(const FieldCondition& condition) {
  const auto count = static_cast<int64_t>(condition.values().size());
  return count == 1 ? absl::StrFormat("the value '%s'", Shown(condition.values()[0]))
                    : absl::StrFormat("one of its %d values", count);
}

}  // namespace

FieldValue TextValue(std::string_view text) { return {false, std::string(text)}; }
FieldValue BoolValue(bool value) { return {false, value ? "true" : "false"}; }
FieldValue NumberValue(int64_t value) { return {true, absl::StrCat(value)}; }
FieldValue NumberValue(uint64_t value) { return {true, absl::StrCat(value)}; }

FieldValue NumberValue(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63, from which an int64_t ends
  if (std::abs(value) < kLimit && value == std::trunc(value)) {
    return NumberValue(static_cast<int64_t>(value));
  }
  char buffer[32];
  return {true, std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr)};
}

FieldCondition::FieldCondition(const std::string& key, std::string name,
                               const v1::FieldValues& values)
    : name_(std::move(name)),
      key_(absl::StrCat(key, ".", name_)),
      values_(values.value().begin(), values.value().end()) {
  for (size_t i = 0; i < values_.size(); ++i) {
    texts_.emplace(values_[i], i);
    if (auto number = NumberOf(values_[i])) numbers_.emplace(*std::move(number), i);
  }
}

std::optional<size_t> FieldCondition::Find(const FieldValue& value) const {
  const auto& known = value.number ? numbers_ : texts_;
  const auto found = known.find(value.text);
  if (found == known.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> FieldCondition::GivenTwice() const {
  for (size_t i = 0; i < values_.size(); ++i) {
    const auto number = NumberOf(values_[i]);
    if (texts_.at(values_[i]) != i || (number && numbers_.at(*number) != i)) return values_[i];
  }
  return std::nullopt;
}

void FilterTally::Add(const FilterTally& other) {
  records += other.records;
  passed += other.passed;
  if (fields.empty()) {
    fields = other.fields;
    return;
  }
  for (size_t i = 0; i < other.fields.size(); ++i) {
    OfField& field = fields[i];
    const OfField& more = other.fields[i];
    field.with += more.with;
    for (size_t v = 0; v < more.of_value.size(); ++v) field.of_value[v] += more.of_value[v];
    for (const std::string& value : more.others) {
      const bool known = std::ranges::find(field.others, value) != field.others.end();
      if (!known && field.others.size() < kOthers) field.others.push_back(value);
    }
  }
}

std::shared_ptr<const RecordFilter> RecordFilter::Make(const Fields& where,
                                                       const std::string& where_key,
                                                       const Fields& except,
                                                       const std::string& except_key) {
  if (where.empty() && except.empty()) return nullptr;
  auto filter = std::make_shared<RecordFilter>();
  const auto add = [&](const Fields& fields, const std::string& key) {
    std::map<std::string, const v1::FieldValues*> sorted;
    for (const auto& [name, values] : fields) sorted[name] = &values;
    for (const auto& [name, values] : sorted) filter->conditions_.emplace_back(key, name, *values);
  };
  add(where, where_key);
  filter->wheres_ = filter->conditions_.size();
  add(except, except_key);
  filter->where_key_ = where_key;
  filter->except_key_ = except_key;
  return filter;
}

bool RecordFilter::Passes(const std::function<std::optional<FieldValue>(size_t)>& value_of,
                          FilterTally* tally) const {
  tally->fields.resize(conditions_.size());
  bool passes = true;
  for (size_t i = 0; i < conditions_.size(); ++i) {
    FilterTally::OfField& field = tally->fields[i];
    field.of_value.resize(conditions_[i].values().size());
    const std::optional<FieldValue> value = value_of(i);
    const std::optional<size_t> found = value ? conditions_[i].Find(*value) : std::nullopt;
    field.with += value ? 1 : 0;
    if (found) {
      ++field.of_value[*found];
    } else if (value && field.others.size() < kOthers &&
               std::ranges::find(field.others, value->text) == field.others.end()) {
      field.others.push_back(value->text);
    }
    passes = passes && found.has_value() == IsWhere(i);
  }
  ++tally->records;
  tally->passed += passes ? 1 : 0;
  return passes;
}

std::optional<FilterFault> RecordFilter::MissingField(size_t condition, const FilterTally& tally,
                                                      const std::string& records) const {
  if (tally.records == 0 || tally.fields[condition].with > 0) return std::nullopt;
  return FilterFault{
      conditions_[condition].key(),
      absl::StrFormat("none of %s has a text, number or bool in this field", records),
      "check the spelling, or remove it", static_cast<int>(condition)};
}

std::optional<FilterFault> RecordFilter::MissingValue(size_t condition, const FilterTally& tally,
                                                      const std::string& records) const {
  if (tally.records == 0) return std::nullopt;
  const FilterTally::OfField& field = tally.fields[condition];
  const FieldCondition& named = conditions_[condition];
  const auto none = std::ranges::find(field.of_value, 0);
  if (field.with == 0 || none == field.of_value.end()) return std::nullopt;
  const auto value = static_cast<size_t>(none - field.of_value.begin());
  const bool all = std::ranges::count(field.of_value, 0) == std::ssize(field.of_value);
  const std::string first =
      absl::StrJoin(field.others, ", ", [](std::string* out, const std::string& other) {
        absl::StrAppend(out, "'", Shown(other), "'");
      });
  return FilterFault{
      named.key(),
      absl::StrFormat(
          "none of %s has %s", records,
          all ? AnyOf(named) : absl::StrFormat("the value '%s'", Shown(named.values()[value]))),
      first.empty() ? "check the spelling"
                    : absl::StrCat("check the spelling: the first other values are ", first),
      static_cast<int>(condition)};
}

std::vector<FilterFault> RecordFilter::FaultsIn(const FilterTally& all) const {
  const std::string records = Records(all.records);
  std::vector<FilterFault> faults;
  for (size_t i = 0; i < conditions_.size(); ++i) {
    if (auto fault = MissingField(i, all, records)) faults.push_back(*std::move(fault));
    if (auto fault = MissingValue(i, all, records)) faults.push_back(*std::move(fault));
  }
  if (all.records > 0 && all.passed == 0 && faults.empty()) {
    faults.push_back({wheres_ > 0 ? where_key_ : except_key_,
                      absl::StrFormat("none of %s passes", records),
                      absl::StrCat("name other values in ", Keys())});
  }
  return faults;
}

std::vector<FilterFault> RecordFilter::MissingFieldsIn(const FilterTally& first) const {
  std::vector<FilterFault> faults;
  for (size_t i = 0; i < conditions_.size(); ++i) {
    auto fault = MissingField(i, first, FirstRecords(first.records));
    if (fault.has_value()) faults.push_back(*std::move(fault));
  }
  return faults;
}

std::vector<FilterFault> RecordFilter::MissingValuesIn(const FilterTally& first) const {
  std::vector<FilterFault> faults;
  for (size_t i = 0; i < conditions_.size(); ++i) {
    auto fault = MissingValue(i, first, FirstRecords(first.records));
    if (fault.has_value()) faults.push_back(*std::move(fault));
  }
  return faults;
}

bool RecordFilter::Excludes(const RecordFilter& other) const {
  const auto has = [](const FieldCondition& condition, const std::string& value) {
    const std::optional<std::string> number = NumberOf(value);
    return condition.Find(TextValue(value)).has_value() ||
           (number && condition.Find({true, *number}).has_value());
  };
  for (size_t i = 0; i < conditions_.size(); ++i) {
    for (size_t j = 0; j < other.conditions_.size(); ++j) {
      const FieldCondition &a = conditions_[i], &b = other.conditions_[j];
      if (a.name() != b.name() || (!IsWhere(i) && !other.IsWhere(j))) continue;
      const bool both = IsWhere(i) && other.IsWhere(j);
      const FieldCondition& named = IsWhere(i) ? a : b;  // what only these values pass
      const FieldCondition& rest = IsWhere(i) ? b : a;
      // Two lists without a common value, or a list that the other leaves out as a whole.
      const bool apart = std::ranges::all_of(
          named.values(), [&](const std::string& value) { return has(rest, value) != both; });
      if (apart) return true;
    }
  }
  return false;
}

std::string RecordFilter::Keys() const {
  return absl::StrJoin(conditions_, ", ", [](std::string* out, const FieldCondition& condition) {
    absl::StrAppend(out, Shown(condition.key()));
  });
}

std::string RecordFilter::Identity() const {
  std::string text;
  const auto add = [&](const std::string& part) {
    absl::StrAppend(&text, part.size(), ":", part, "\n");
  };
  for (size_t i = 0; i < conditions_.size(); ++i) {
    std::vector<std::string> values = conditions_[i].values();
    std::ranges::sort(values);
    add(IsWhere(i) ? "where" : "except");
    add(conditions_[i].name());
    add(absl::StrCat(values.size()));
    for (const std::string& value : values) add(value);
  }
  return text;
}

void RecordFilter::Describe(v1::PreparedFilter* filter) const {
  for (size_t i = 0; i < conditions_.size(); ++i) {
    auto& fields = IsWhere(i) ? *filter->mutable_where() : *filter->mutable_except();
    v1::FieldValues& values = fields[conditions_[i].name()];
    for (const std::string& value : conditions_[i].values()) values.add_value(value);
  }
}

}  // namespace nsa
