// Which records of JSON lines and Parquet files are read: data.where and data.except, and the same
// keys of a source of data.mix and of a set of data.val. Readers, preflight, the cache and prepared
// data all ask here, so that they agree.
//
// A record passes if each field of `where` has one of its values and no field of `except` has one
// of its. A field that is missing, null, a list or an object has none of any values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "google/protobuf/map.h"
#include "nsa/v1/data.pb.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// What a record has in a field: a text, a number or a bool.
struct FieldValue {
  bool number = false;
  std::string text;  // of a number its shortest decimal form, of a bool "true" or "false"
};
FieldValue TextValue(std::string_view text);
FieldValue BoolValue(bool value);
FieldValue NumberValue(int64_t value);
FieldValue NumberValue(uint64_t value);
FieldValue NumberValue(double value);  // 2.0 is 2

// One field of `where` or `except`.
class FieldCondition {
 public:
  // `key`: "data.where".
  FieldCondition(const std::string& key, std::string name, const v1::FieldValues& values);

  const std::string& name() const { return name_; }  // "source"
  const std::string& key() const { return key_; }    // "data.where.source"
  const std::vector<std::string>& values() const { return values_; }

  // Which of the values it is; nothing if it is none. A value of the job file is a text, and also
  // the number that it is, if it is one.
  std::optional<size_t> Find(const FieldValue& value) const;

  // A value that is given twice, perhaps as another form of a number; nothing if there is none.
  std::optional<std::string> GivenTwice() const;

 private:
  std::string name_;
  std::string key_;
  std::vector<std::string> values_;
  std::map<std::string, size_t, std::less<>> texts_;
  std::map<std::string, size_t, std::less<>> numbers_;
};

// What a filter has met.
struct FilterTally {
  struct OfField {
    int64_t with = 0;                 // records that have a text, number or bool in it
    std::vector<int64_t> of_value;    // records that have each of the values
    std::vector<std::string> others;  // the first values that are none of these
  };
  int64_t records = 0;
  int64_t passed = 0;
  std::vector<OfField> fields;  // those of `where`, then those of `except`

  void Add(const FilterTally& other);
};

// "key: problem; fix", as a finding of preflight or an error.
struct FilterFault {
  std::string key;
  std::string problem;
  std::string fix;
  int condition = -1;  // its index in conditions(); -1: all of them
  std::string Text() const { return key + ": " + problem + "; " + fix; }
};

// Immutable; threads may share one.
class RecordFilter {
 public:
  using Fields = google::protobuf::Map<std::string, v1::FieldValues>;

  // Null if both are empty. The keys are "data.where" and "data.except", or those of a set or of a
  // source of a mixture.
  static std::shared_ptr<const RecordFilter> Make(const Fields& where, const std::string& where_key,
                                                  const Fields& except,
                                                  const std::string& except_key);

  // The fields of `where`, then those of `except`, each in the order of their names.
  const std::vector<FieldCondition>& conditions() const { return conditions_; }

  // Whether a record passes, which is added to `tally`. `value_of` returns what it has in the field
  // of a condition, whose index in conditions() it is given.
  bool Passes(const std::function<std::optional<FieldValue>(size_t)>& value_of,
              FilterTally* tally) const;

  // What is wrong with the filter if these are all records: a field or a value that none of them
  // has, or no record that passes. The first such fault of each field.
  std::vector<FilterFault> FaultsIn(const FilterTally& all) const;
  // The same of the first records, of which others may have what these have not: a field that none
  // of them has, or, without those, a value.
  std::vector<FilterFault> MissingFieldsIn(const FilterTally& first) const;
  std::vector<FilterFault> MissingValuesIn(const FilterTally& first) const;

  // Whether no record can pass both filters, as far as it can be told from a field that both name.
  bool Excludes(const RecordFilter& other) const;

  // Names the keys: "data.where.source".
  std::string Keys() const;
  // Equal for filters that let the same records pass.
  std::string Identity() const;
  void Describe(v1::PreparedFilter* filter) const;

 private:
  // `records`: "300 records".
  std::optional<FilterFault> MissingField(size_t condition, const FilterTally& tally,
                                          const std::string& records) const;
  std::optional<FilterFault> MissingValue(size_t condition, const FilterTally& tally,
                                          const std::string& records) const;
  bool IsWhere(size_t condition) const { return condition < wheres_; }

  std::vector<FieldCondition> conditions_;
  size_t wheres_ = 0;  // how many of them are of `where`
  std::string where_key_, except_key_;
};

}  // namespace nsa
