#include "common/job/data_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>

#include "common/job/enum_words.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

TEST(DataSource, SaysWhichSourcesReadFilesAndWhichHoldText) {
  const struct {
    v1::DataSource source;
    bool files;
    bool text;
  } cases[] = {
      {v1::DATA_SOURCE_UNSPECIFIED, false, false}, {v1::DATA_SOURCE_SYNTHETIC, false, false},
      {v1::DATA_SOURCE_UNIFORM, false, false},     {v1::DATA_SOURCE_TEXT, true, true},
      {v1::DATA_SOURCE_JSONL, true, true},         {v1::DATA_SOURCE_TOKENS, true, false},
      {v1::DATA_SOURCE_PARQUET, true, true},
  };
  EXPECT_EQ(std::size(cases), static_cast<size_t>(v1::DataSource_descriptor()->value_count()));
  for (const auto& one : cases) {
    const DataSourceInfo& info = DataSourceInfoOf(one.source);
    EXPECT_EQ(info.has_files(), one.files) << v1::DataSource_Name(one.source);
    EXPECT_EQ(info.has_text(), one.text) << v1::DataSource_Name(one.source);
  }
  EXPECT_EQ(SourcesWithFiles(), "text, jsonl, tokens or parquet");
}

TEST(DataSource, ATextFileIsOfJsonLinesByTheEndingOfItsName) {
  for (const char* name : {"a.jsonl", "a.ndjson", "/d/a.jsonl.gz", "a.ndjson.zst"}) {
    EXPECT_EQ(TextSourceOf(name), v1::DATA_SOURCE_JSONL) << name;
  }
  for (const char* name : {"a.txt", "a", "jsonl", "a.jsonl.txt", "a.txt.zst", ""}) {
    EXPECT_EQ(TextSourceOf(name), v1::DATA_SOURCE_TEXT) << name;
  }
  EXPECT_EQ(TextSourceOf("/d/train-00000.parquet"), v1::DATA_SOURCE_PARQUET);
  EXPECT_EQ(TextSourceOf("a.parquet.txt"), v1::DATA_SOURCE_TEXT);
}

TEST(DataSource, ASeparatorIsATokenOrNone) {
  EXPECT_EQ(ParseSeparator("50256").value(), 50256);
  EXPECT_EQ(ParseSeparator("0").value(), 0);
  EXPECT_EQ(ParseSeparator("1048575").value(), kMostTokens - 1);
  EXPECT_EQ(ParseSeparator("none").value(), kNoSeparator);
  for (const char* word : {"", "-1", "1048576", "None", "0x10", "1.5", " 1"}) {
    EXPECT_THAT(ParseSeparator(word), StatusIs(absl::StatusCode::kInvalidArgument,
                                               testing::HasSubstr("GPT-2's is 50256")))
        << word;
  }
}

}  // namespace
}  // namespace nsa
