#include "common/job/data/record_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/data/json_line.h"
#include "common/job/data/line_sample.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Lists = std::initializer_list<std::pair<std::string, std::vector<std::string>>>;

RecordFilter::Fields FieldsOf(Lists lists) {
  RecordFilter::Fields fields;
  for (const auto& [name, values] : lists) {
    for (const std::string& value : values) fields[name].add_value(value);
    if (values.empty()) fields[name];
  }
  return fields;
}

std::shared_ptr<const RecordFilter> Filter(Lists where, Lists except = {}) {
  return RecordFilter::Make(FieldsOf(where), "data.where", FieldsOf(except), "data.except");
}

bool Passes(const std::shared_ptr<const RecordFilter>& filter, const std::string& line,
            FilterTally* tally) {
  const absl::StatusOr<JsonLine> record = JsonLine::Parse(line);
  EXPECT_OK(record);
  return record.ok() && record->Passes(filter.get(), tally);
}

bool Passes(const std::shared_ptr<const RecordFilter>& filter, const std::string& line) {
  FilterTally tally;
  return Passes(filter, line, &tally);
}

TEST(RecordFilter, WithoutFieldsIsNone) {
  EXPECT_EQ(Filter({}), nullptr);
  EXPECT_TRUE(Passes(nullptr, R"({"text": "a"})"));
}

TEST(RecordFilter, WhereNeedsOneOfTheValuesOfEachField) {
  const auto filter = Filter({{"source", {"a", "b"}}, {"meta.lang", {"de"}}});
  EXPECT_TRUE(Passes(filter, R"({"source": "b", "meta": {"lang": "de"}})"));
  EXPECT_TRUE(Passes(filter, R"({"source": "a", "meta.lang": "de"})"));
  EXPECT_FALSE(Passes(filter, R"({"source": "c", "meta": {"lang": "de"}})"));
  EXPECT_FALSE(Passes(filter, R"({"source": "a", "meta": {"lang": "en"}})"));
  EXPECT_FALSE(Passes(filter, R"({"source": "a"})"));
  EXPECT_FALSE(Passes(filter, R"({"source": "A", "meta": {"lang": "de"}})"));
}

TEST(RecordFilter, ExceptLeavesOutARecordForAnyOfItsFields) {
  const auto filter = Filter({}, {{"source", {"a", "b"}}, {"lang", {"de"}}});
  EXPECT_TRUE(Passes(filter, R"({"source": "c", "lang": "en"})"));
  EXPECT_TRUE(Passes(filter, R"({"text": "no field"})"));
  EXPECT_FALSE(Passes(filter, R"({"source": "a", "lang": "en"})"));
  EXPECT_FALSE(Passes(filter, R"({"source": "c", "lang": "de"})"));
}

TEST(RecordFilter, WhatIsNoTextNumberOrBoolHasNoneOfTheValues) {
  for (const char* value : {"null", "NaN", "[\"a\"]", "{\"a\": \"a\"}"}) {
    const std::string line = absl::StrCat("{\"source\": ", value, "}");
    EXPECT_FALSE(Passes(Filter({{"source", {"a"}}}), line)) << value;
    EXPECT_TRUE(Passes(Filter({}, {{"source", {"a"}}}), line)) << value;
  }
}

TEST(RecordFilter, NumbersAreComparedByTheirValueAndBoolsByTheirWord) {
  const auto filter = Filter({{"x", {"2", "0.5", "-3e2", "18446744073709551615", "true"}}});
  for (const char* value : {"2", "2.0", "0.5", "5e-1", "-300", "18446744073709551615", "true",
                            "\"2\"", "\"-3e2\"", "\"true\""}) {
    EXPECT_TRUE(Passes(filter, absl::StrCat("{\"x\": ", value, "}"))) << value;
  }
  for (const char* value : {"3", "\"2.0\"", "\"-300\"", "false", "18446744073709551614", "\"\""}) {
    EXPECT_FALSE(Passes(filter, absl::StrCat("{\"x\": ", value, "}"))) << value;
  }
  for (const char* value : {"100000000000000000", "1e17", "100000000000000000.0"}) {
    EXPECT_TRUE(Passes(Filter({{"x", {"1e17"}}}), absl::StrCat("{\"x\": ", value, "}"))) << value;
    EXPECT_TRUE(Passes(Filter({{"x", {value}}}), R"({"x": 100000000000000000})")) << value;
  }
  EXPECT_FALSE(Passes(Filter({{"x", {"007"}}}), R"({"x": 7})"));
  EXPECT_TRUE(Passes(Filter({{"x", {"007"}}}), R"({"x": "007"})"));
}

std::vector<std::string> FaultsOf(const std::shared_ptr<const RecordFilter>& filter,
                                  const std::vector<std::string>& lines, bool all = true) {
  FilterTally tally;
  for (const std::string& line : lines) Passes(filter, line, &tally);
  std::vector<std::string> faults;
  for (const FilterFault& fault : all ? filter->FaultsIn(tally) : filter->MissingFieldsIn(tally)) {
    faults.push_back(fault.Text());
  }
  return faults;
}

TEST(RecordFilter, SaysWhichFieldOrValueNoRecordHas) {
  const std::vector<std::string> lines = {R"({"source": "a"})", R"({"source": "b"})",
                                          R"({"source": "a", "year": 7})"};
  EXPECT_THAT(FaultsOf(Filter({{"source", {"a"}}}), lines), IsEmpty());
  EXPECT_THAT(FaultsOf(Filter({{"sources", {"a"}}}), lines),
              ElementsAre("data.where.sources: none of 3 records has a text, number or bool in "
                          "this field; check the spelling, or remove it"));
  EXPECT_THAT(FaultsOf(Filter({}, {{"source", {"c", "d"}}}), lines),
              ElementsAre("data.except.source: none of 3 records has one of its 2 values; check "
                          "the spelling: the first other values are 'a', 'b'"));
  EXPECT_THAT(FaultsOf(Filter({{"source", {"a", "c"}}}), lines),
              ElementsAre("data.where.source: none of 3 records has the value 'c'; check the "
                          "spelling: the first other values are 'b'"));
  EXPECT_THAT(FaultsOf(Filter({{"source", {"b"}}, {"year", {"7"}}}), lines),
              ElementsAre("data.where: none of 3 records passes; name other values in "
                          "data.where.source, data.where.year"));
  EXPECT_THAT(FaultsOf(Filter({}, {{"source", {"a", "b"}}}), lines),
              ElementsAre(HasSubstr("data.except: none of 3 records passes")));
  EXPECT_THAT(FaultsOf(Filter({{"source", {"c"}}}), {}), IsEmpty());
}

TEST(RecordFilter, OfSomeOfTheRecordsOnlyAFieldThatNoneHasIsAFault) {
  const std::vector<std::string> lines = {R"({"source": "a"})"};
  EXPECT_THAT(FaultsOf(Filter({{"source", {"b"}}}), lines, /*all=*/false), IsEmpty());
  EXPECT_THAT(FaultsOf(Filter({{"sauce", {"b"}}}), lines, /*all=*/false),
              ElementsAre(HasSubstr("data.where.sauce: none of the first 1 record has")));
}

TEST(RecordFilter, SaysWhichValueTheFirstRecordsHaveNot) {
  FilterTally tally;
  const auto filter = Filter({{"source", {"b"}}, {"sauce", {"c"}}});
  Passes(filter, R"({"source": "a"})", &tally);
  const std::vector<FilterFault> faults = filter->MissingValuesIn(tally);
  ASSERT_EQ(faults.size(), 1u) << "a field that none has is another fault";
  EXPECT_EQ(faults[0].Text(),
            "data.where.source: none of the first 1 record has the value 'b'; check the spelling: "
            "the first other values are 'a'");
  EXPECT_EQ(filter->conditions()[static_cast<size_t>(faults[0].condition)].name(), "source");
  EXPECT_TRUE(filter->MissingValuesIn({}).empty());
}

TEST(RecordFilter, TalliesOfSeveralFilesAddUp) {
  const auto filter = Filter({{"source", {"a", "b"}}});
  FilterTally one, two, all;
  Passes(filter, R"({"source": "a"})", &one);
  Passes(filter, R"({"source": "c"})", &one);
  Passes(filter, R"({"source": "b"})", &two);
  Passes(filter, R"({"source": "c"})", &two);
  for (const FilterTally* tally : {&one, &two}) all.Add(*tally);
  EXPECT_EQ(all.records, 4);
  EXPECT_EQ(all.passed, 2);
  EXPECT_THAT(all.fields[0].of_value, ElementsAre(1, 1));
  EXPECT_THAT(all.fields[0].others, ElementsAre("c"));
}

TEST(RecordFilter, ExcludesAnotherIfTheirListsSaySo) {
  const auto excludes = [](const std::shared_ptr<const RecordFilter>& a,
                           const std::shared_ptr<const RecordFilter>& b) {
    EXPECT_EQ(a->Excludes(*b), b->Excludes(*a));
    return a->Excludes(*b);
  };
  const auto books = Filter({{"source", {"a", "b"}}});
  EXPECT_TRUE(excludes(books, Filter({}, {{"source", {"b", "c", "a"}}})));
  EXPECT_TRUE(excludes(books, Filter({{"source", {"c"}}})));
  EXPECT_FALSE(excludes(books, Filter({}, {{"source", {"a"}}})));
  EXPECT_FALSE(excludes(books, Filter({{"source", {"b", "c"}}})));
  EXPECT_FALSE(excludes(books, Filter({}, {{"other", {"a", "b"}}})));
  EXPECT_FALSE(excludes(Filter({}, {{"source", {"a"}}}), Filter({}, {{"source", {"b"}}})));
  EXPECT_FALSE(excludes(Filter({{"x", {"1"}}}), Filter({{"x", {"1.0"}}})));
}

TEST(RecordFilter, IsIdentifiedByWhatPasses) {
  const std::string one = Filter({{"source", {"a", "b"}}, {"x", {"1"}}})->Identity();
  EXPECT_EQ(Filter({{"x", {"1"}}, {"source", {"b", "a"}}})->Identity(), one);
  EXPECT_NE(Filter({{"source", {"a", "b"}}})->Identity(), one);
  EXPECT_NE(Filter({{"source", {"a"}}, {"x", {"1"}}})->Identity(), one);
  EXPECT_NE(Filter({}, {{"source", {"a", "b"}}, {"x", {"1"}}})->Identity(), one);
  // A value is never the beginning of the next field.
  EXPECT_NE(Filter({{"a", {"b", "where", "x", "y"}}})->Identity(),
            Filter({{"a", {"b"}}, {"x", {"y"}}})->Identity());
}

TEST(RecordFilter, KnowsAValueThatIsGivenTwice) {
  const auto twice = [](const std::vector<std::string>& values) {
    return Filter({{"x", values}})->conditions()[0].GivenTwice().value_or("");
  };
  EXPECT_EQ(twice({"a", "b"}), "");
  EXPECT_EQ(twice({"a", "b", "a"}), "a");
  EXPECT_EQ(twice({"1", "1.0"}), "1.0");
}

TEST(LineSample, MeasuresWhatPassesAndWhatIsTextInIt) {
  const TempDir dir;
  std::string lines;
  for (int i = 0; i < 10; ++i) {
    absl::StrAppend(&lines, R"({"s": ")", i < 3 ? "a" : "b", R"(", "text": "12345678"})", "\n");
  }
  std::ofstream(dir / "a.jsonl") << lines;
  const auto filter = Filter({{"s", {"a"}}});
  const LineSample all = SampleLines(dir / "a.jsonl", "", filter.get(), 1 << 20);
  EXPECT_TRUE(all.whole);
  EXPECT_DOUBLE_EQ(all.PassingShare(), 0.3);
  EXPECT_DOUBLE_EQ(all.TextShare(), 8.0 / (static_cast<double>(lines.size()) / 10));
  EXPECT_EQ(all.tally.records, 10);
  EXPECT_EQ(all.tally.passed, 3);
  // Nothing is concluded from a part in which no record passes.
  const auto none = Filter({{"s", {"c"}}});
  EXPECT_DOUBLE_EQ(SampleLines(dir / "a.jsonl", "", none.get(), 100).PassingShare(), 1);
  EXPECT_DOUBLE_EQ(SampleLines(dir / "a.jsonl", "", none.get(), 1 << 20).PassingShare(), 0);
  EXPECT_DOUBLE_EQ(SampleLines(dir / "a.jsonl", "", nullptr, 1 << 20).PassingShare(), 1);
}

}  // namespace
}  // namespace nsa
