#include "worker/train/data/prepared/inspect.h"

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/data/prepared/prepared_jobs.h"
#include "worker/train/data/corpus.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Ten documents of 1 to 10 letters, a copy of the last, and a blank one.
std::string TwelveLines() {
  std::string lines;
  for (int i = 1; i <= 10; ++i) {
    absl::StrAppend(&lines, "{\"text\": \"", std::string(i, 'a'), "\"}\n");
  }
  return lines + "{\"text\": \"aaaaaaaaaa\"}\n{\"text\": \"\"}\n{\"text\": \" \\n\"}\n";
}

v1::JobSpec JobOnLines(const TempDir& dir) {
  Write(dir / "a.jsonl", TwelveLines());
  return JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->add_path(dir / "a.jsonl");
    data->add_val_path(dir / "a.jsonl");
  });
}

TEST(Inspect, CountsDocumentsLengthsCopiesAndBlanks) {
  const TempDir dir;
  ReadProgress progress;
  const auto found = InspectJob(Full(JobOnLines(dir)), &progress);
  ASSERT_OK(found);
  ASSERT_EQ(found->sets_size(), 2);
  const v1::InspectedSet& set = found->sets(0);
  EXPECT_EQ(set.name(), "data.path");
  EXPECT_EQ(found->sets(1).name(), "data.val_path");
  EXPECT_EQ(set.files(), 1);
  EXPECT_EQ(set.documents(), 12);  // the empty one is none
  EXPECT_EQ(set.duplicates(), 1);
  EXPECT_EQ(set.blank(), 1);
  EXPECT_EQ(set.text_bytes(), 55 + 10 + 2);
  EXPECT_EQ(set.tokens(), 55 + 10 + 2 + 12);
  EXPECT_EQ(set.document_bytes().least(), 1);
  EXPECT_EQ(set.document_bytes().median(), 5);  // of 1 2 2 3 4 5 6 7 8 9 10 10
  EXPECT_EQ(set.document_bytes().p90(), 10);
  EXPECT_EQ(set.document_bytes().most(), 10);
  EXPECT_EQ(set.document_tokens().most(), 11);
  EXPECT_EQ(set.largest_token(), 'a');
  EXPECT_THAT(set.sample(), ElementsAre("a", "aa", "aaa"));
}

TEST(Inspect, SaysTheSameOfPreparedData) {
  const TempDir dir;
  const v1::JobSpec spec = JobOnLines(dir);
  ASSERT_OK(PrepareInto(dir / "out", spec));
  ReadProgress progress;
  auto files = InspectJob(Full(spec), &progress);
  ASSERT_OK(files);
  for (const std::filesystem::path& path : {dir / "out", dir / "out/train.tokens"}) {
    const auto folders = InspectPaths({path.string()}, &progress);
    ASSERT_OK(folders);
    const v1::InspectedSet& was = files->sets(0);
    const v1::InspectedSet& now = folders->sets(0);
    EXPECT_EQ(now.name(), dir / "out/train.tokens");
    EXPECT_EQ(now.documents(), was.documents());
    EXPECT_EQ(now.duplicates(), was.duplicates());
    EXPECT_EQ(now.text_bytes(), was.text_bytes());
    EXPECT_EQ(now.tokens(), was.tokens());
    EXPECT_EQ(now.document_tokens().SerializeAsString(), was.document_tokens().SerializeAsString());
    EXPECT_THAT(now.sample(), ElementsAre("a", "aa", "aaa"));
  }
}

TEST(Inspect, EmptyFilesAreCountedBeforeAndAfterPreparing) {
  const TempDir dir;
  v1::JobSpec spec = JobOnLines(dir);
  Write(dir / "val.jsonl", "{\"text\": \"another\"}\n");
  spec.mutable_data()->set_val_path(0, dir / "val.jsonl");
  for (const char* name : {"b.jsonl", "c.jsonl"}) {
    Write(dir / name, "");
    spec.mutable_data()->add_path(dir / name);
  }
  const auto prepared = PrepareInto(dir / "out", spec);
  ASSERT_OK(prepared);
  EXPECT_EQ(prepared->sets(0).files(), 3);
  EXPECT_EQ(prepared->sets(0).empty_files(), 2);
  EXPECT_EQ(prepared->sets(1).empty_files(), 0);
  ReadProgress progress;
  const auto files = InspectJob(Full(spec), &progress);
  ASSERT_OK(files);
  EXPECT_EQ(files->sets(0).empty_files(), 2);
  EXPECT_EQ(files->sets(1).empty_files(), 0);
  const auto folder = InspectPaths({(dir / "out/train.tokens").string()}, &progress);
  ASSERT_OK(folder);
  EXPECT_EQ(folder->sets(0).empty_files(), 2);
  const auto corpus =
      LoadCorpus(Full(JobOnPrepared(spec, dir / "out")).data(), 256, absl::Seconds(20));
  ASSERT_OK(corpus);
  EXPECT_EQ(corpus->info.empty_files, 2);
}

TEST(Inspect, AMissingFileIsNamedWithItsKeyAndWhatToDo) {
  const TempDir dir;
  ReadProgress progress;
  v1::JobSpec spec = JobOnLines(dir);
  spec.mutable_data()->set_val_path(0, dir / "none.jsonl");
  EXPECT_THAT(InspectJob(spec, &progress),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("data.val_path[0]: " + std::string(dir / "none.jsonl")),
                             HasSubstr("No such file or directory; give a file that exists"))));
}

TEST(Inspect, AFileNeedsNoJob) {
  const TempDir dir;
  Write(dir / "rows.parquet", ParquetText({"one", std::nullopt, "one"}, {}).Write());
  Write(dir / "raw.bin", TokenFile(20, 999));
  ReadProgress progress;
  const auto found = InspectPaths({dir / "rows.parquet", dir / "raw.bin"}, &progress);
  ASSERT_OK(found);
  EXPECT_EQ(found->sets(0).documents(), 2);
  EXPECT_EQ(found->sets(0).duplicates(), 1);
  EXPECT_EQ(found->sets(0).null_rows(), 1);
  EXPECT_EQ(found->sets(0).tokens(), 0);
  EXPECT_EQ(found->sets(1).documents(), 1);
  EXPECT_EQ(found->sets(1).tokens(), static_cast<int64_t>(TokenFile(20, 999).size()) / 2);
  EXPECT_THAT(InspectPaths({dir / "none.jsonl"}, &progress),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.jsonl")));
}

TEST(Inspect, ASampleIsShortAndCannotSteerATerminal) {
  const TempDir dir;
  std::string text = "\x1b[2Jhello\n";
  for (int i = 0; i < 200; ++i) text += "é";
  Write(dir / "a.txt", text);
  ReadProgress progress;
  const auto found = InspectPaths({dir / "a.txt"}, &progress);
  ASSERT_OK(found);
  ASSERT_EQ(found->sets(0).sample_size(), 1);
  EXPECT_THAT(found->sets(0).sample(0),
              AllOf(HasSubstr("\\x1b[2Jhello\\né"), testing::EndsWith("é…")));
  EXPECT_LT(found->sets(0).sample(0).size(), 220u);
}

}  // namespace
}  // namespace nsa::train
