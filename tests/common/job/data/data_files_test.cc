#include "common/job/data/data_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "common/job/load.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

void Touch(const std::filesystem::path& path) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << "x";
}

std::string PathIn(const TempDir& dir, const std::string& name) { return (dir / name).string(); }

TEST(DataFiles, APatternIsTheFilesThatMatchInTheOrderOfTheirNames) {
  const TempDir dir;
  for (const char* name : {"b-10.txt", "b-2.txt", "a-1.txt", "c.parquet", ".b-3.txt"}) {
    Touch(dir / name);
  }
  std::filesystem::create_directories(dir / "b-folder.txt");
  EXPECT_THAT(ExpandPath(PathIn(dir, "b-*.txt")).value(),
              ElementsAre(PathIn(dir, "b-10.txt"), PathIn(dir, "b-2.txt")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "[ac]*")).value(),
              ElementsAre(PathIn(dir, "a-1.txt"), PathIn(dir, "c.parquet")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "?-1.txt")).value(), ElementsAre(PathIn(dir, "a-1.txt")));
  EXPECT_THAT(ExpandPath(PathIn(dir, ".b*")).value(), ElementsAre(PathIn(dir, ".b-3.txt")));
}

TEST(DataFiles, APathWithoutWildcardsIsItselfWhetherItExistsOrNot) {
  const TempDir dir;
  EXPECT_THAT(ExpandPath(PathIn(dir, "none.txt")).value(), ElementsAre(PathIn(dir, "none.txt")));
  EXPECT_THAT(ExpandPath("s3://bucket/*.txt").value(), ElementsAre("s3://bucket/*.txt"));
  Touch(dir / "odd [1].txt");
  EXPECT_THAT(ExpandPath(PathIn(dir, "odd [1].txt")).value(),
              ElementsAre(PathIn(dir, "odd [1].txt")));
}

TEST(DataFiles, AFolderIsMeantLiterallyAlsoWithBracketsInItsName) {
  const TempDir dir;
  for (const char* name : {"data [v2]/b.txt", "data [v2]/a.txt", "data v/c.txt", "out*/x[1].txt"}) {
    Touch(dir / name);
  }
  EXPECT_THAT(ExpandPath(PathIn(dir, "data [v2]/*.txt")).value(),
              ElementsAre(PathIn(dir, "data [v2]/a.txt"), PathIn(dir, "data [v2]/b.txt")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "data [v2]/a.txt")).value(),
              ElementsAre(PathIn(dir, "data [v2]/a.txt")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "out*/x*.txt")).value(),
              ElementsAre(PathIn(dir, "out*/x[1].txt")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "out*/x[1].txt")).value(),
              ElementsAre(PathIn(dir, "out*/x[1].txt")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "data [v2]/none.txt")).value(),
              ElementsAre(PathIn(dir, "data [v2]/none.txt")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "data [v2]/*.jsonl")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no file matches")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "data [v3]/*.txt")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no such folder")));
}

TEST(DataFiles, APatternWithoutAMatchOrWithAWildcardInAFolderSaysSo) {
  const TempDir dir;
  Touch(dir / "a/b.txt");
  EXPECT_THAT(
      ExpandPath(PathIn(dir, "a/*.jsonl")),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("a/*.jsonl"), HasSubstr("no file"))));
  EXPECT_THAT(ExpandPath(PathIn(dir, "none/*.txt")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("No such file")));
  EXPECT_THAT(ExpandPath(PathIn(dir, "*/b.txt")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in a folder's name")));
}

TEST(DataFiles, NamesTheFilesOfMixturesAndOfValidationWithTheirFields) {
  v1::DataSpec data;
  ASSERT_OK(
      LoadYamlText("text_field: body\n"
                   "val_path: [v.jsonl.zst, v.txt]\n"
                   "val: {prose: p.txt, code: c.parquet}\n"
                   "mix:\n"
                   "- {name: a, source: jsonl, path: [x, y], weight: 3, text_field: t}\n"
                   "- {name: b, source: tokens, path: z, weight: 1.5}\n",
                   "data", &data));
  const std::vector<DataFiles> all = AllDataFiles(data);
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0].FieldOf(1), "data.mix[0].path[1]");
  EXPECT_EQ(all[0].text_field, "t");
  EXPECT_EQ(all[0].weight, 3);
  EXPECT_EQ(all[1].name, "b");
  EXPECT_EQ(all[1].source, v1::DATA_SOURCE_TOKENS);
  EXPECT_EQ(all[1].text_field, "text");
  EXPECT_EQ(all[2].source, v1::DATA_SOURCE_JSONL);  // by the ending of its name
  EXPECT_EQ(all[3].FieldOf(0), "data.val_path[1]");
  EXPECT_EQ(all[3].source, v1::DATA_SOURCE_TEXT);
  EXPECT_EQ(all[4].name, "code");  // in the order of the names
  EXPECT_EQ(all[4].source, v1::DATA_SOURCE_PARQUET);
  EXPECT_EQ(all[4].text_field, "body");
  EXPECT_EQ(all[5].FieldOf(0), "data.val.prose");
  EXPECT_FALSE(ReadsOnlyTokens(data));
  EXPECT_TRUE(ReadsText(data));
}

TEST(DataFiles, AFolderOfPreparedDataIsRecognisedByItsName) {
  v1::DataSpec data;
  data.add_mix()->set_source(v1::DATA_SOURCE_JSONL);
  for (const char* path : {"val.tokens", "val.jsonl"}) data.add_val_path(path);
  (*data.mutable_val())["a"] = "tokens/val-a.tokens";
  (*data.mutable_val())["b"] = "b.tokens.txt";
  EXPECT_EQ(ValidationFiles(data)[0].source, v1::DATA_SOURCE_TOKENS);
  EXPECT_EQ(ValidationFiles(data)[1].source, v1::DATA_SOURCE_JSONL);
  EXPECT_EQ(NamedValidationFiles(data)[0].source, v1::DATA_SOURCE_TOKENS);
  EXPECT_EQ(NamedValidationFiles(data)[1].source, v1::DATA_SOURCE_TEXT);
}

TEST(DataFiles, AMixtureSurvivesYamlAndChangesTheHashOfTheJob) {
  v1::JobSpec spec;
  ASSERT_OK(
      LoadYamlText("name: m\n"
                   "data:\n"
                   "  mix:\n"
                   "  - {name: a, source: text, path: x, weight: 3}\n"
                   "  - {name: b, source: text, path: y, weight: 1}\n"
                   "  val: {prose: p.txt}\n",
                   "job", &spec));
  ASSERT_OK(PlaceJob("m.yaml", "/base", &spec));
  EXPECT_EQ(spec.data().mix(1).path(0), "/base/y");
  EXPECT_EQ(spec.data().val().at("prose"), "/base/p.txt");
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.data().source(), v1::DATA_SOURCE_UNSPECIFIED);
  EXPECT_EQ(spec.data().tokenizer(), v1::TOKENIZER_BYTE);
  EXPECT_EQ(spec.data().val_fraction(), 0.01);
  v1::JobSpec again;
  ASSERT_OK(LoadYamlText(ToYaml(spec), "job", &again));
  EXPECT_EQ(ToYaml(again), ToYaml(spec));
  for (const auto& change : std::vector<std::function<void(v1::DataSpec*)>>{
           [](v1::DataSpec* data) { data->mutable_mix(0)->set_weight(2); },
           [](v1::DataSpec* data) { data->mutable_mix(0)->set_name("c"); },
           [](v1::DataSpec* data) { data->mutable_mix(0)->set_text_field("t"); },
           [](v1::DataSpec* data) { data->set_text_field("t"); },
           [](v1::DataSpec* data) { (*data->mutable_val())["code"] = "/c"; }}) {
    v1::JobSpec other = spec;
    change(other.mutable_data());
    EXPECT_NE(JobHash(other), JobHash(spec));
  }
}

TEST(DataFiles, AFilterIsThatOfItsSourceOrSet) {
  v1::DataSpec data;
  ASSERT_TRUE(data.add_path() != nullptr && data.add_val_path() != nullptr);
  (*data.mutable_where())["source"].add_value("a");
  (*data.mutable_val())["books"] = "b.jsonl";
  (*data.mutable_val())["rest"] = "b.jsonl";
  (*(*data.mutable_val_except())["books"].mutable_field())["source"].add_value("a");
  const auto keys = [](const DataFiles& files) {
    return files.filter == nullptr ? "none" : files.filter->Keys();
  };
  EXPECT_EQ(keys(TrainingFiles(data)[0]), "data.where.source");
  EXPECT_EQ(keys(ValidationFiles(data)[0]), "data.where.source");
  EXPECT_EQ(keys(NamedValidationFiles(data)[0]), "data.val_except.books.source");
  EXPECT_EQ(keys(NamedValidationFiles(data)[1]), "none");
  data.add_mix();
  (*data.add_mix()->mutable_except())["lang"].add_value("de");
  EXPECT_EQ(keys(TrainingFiles(data)[0]), "none");
  EXPECT_EQ(keys(TrainingFiles(data)[1]), "data.mix[1].except.lang");
}

}  // namespace
}  // namespace nsa
