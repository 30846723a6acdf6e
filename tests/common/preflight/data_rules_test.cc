// The rules about data, where one case each (preflight_test.cc) is too few.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/common/preflight/preflight_cases.h"
#include "tests/testing/parquet_footer.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Preflight, ATextMayBeCompressedButNotWhatIsNoText) {
  GoodJob job;
  job.context.check_files = false;
  Data(&job)->clear_val_path();
  const auto refused = [&job](v1::DataSource source, const std::string& name) {
    Data(&job)->set_source(source);
    Data(&job)->set_path(0, job.PathOf(name));
    return FindingOf(job.Check(), "DATA_KIND_MISMATCH") != nullptr;
  };
  for (const char* name : {"a.txt.gz", "a.zst", "a.txt"}) {
    EXPECT_FALSE(refused(v1::DATA_SOURCE_TEXT, name)) << name;
  }
  for (const char* name : {"a.jsonl.gz", "a.parquet", "a.npy.zst"}) {
    EXPECT_TRUE(refused(v1::DATA_SOURCE_TEXT, name)) << name;
  }
  EXPECT_TRUE(refused(v1::DATA_SOURCE_TOKENS, "a.bin.gz"));
  EXPECT_TRUE(refused(v1::DATA_SOURCE_PARQUET, "a.parquet.zst"));
  EXPECT_TRUE(refused(v1::DATA_SOURCE_JSONL, "a.parquet.gz"));
  EXPECT_FALSE(refused(v1::DATA_SOURCE_JSONL, "a.jsonl.gz"));
}

TEST(Preflight, ATokenFileNeedsItsSeparatorUnlessItKnowsItsDocuments) {
  const auto problem = [](const std::function<void(GoodJob*)>& change) -> std::string {
    GoodJob job;
    job.Write("train.bin", std::string(4 << 20, '\0'));
    job.Write("val.bin", std::string(1 << 16, '\0'));
    Data(&job)->set_source(v1::DATA_SOURCE_TOKENS);
    Data(&job)->clear_tokenizer();
    Data(&job)->set_path(0, job.PathOf("train.bin"));
    Data(&job)->set_val_path(0, job.PathOf("val.bin"));
    job.spec.mutable_model()->set_vocab(50257);
    change(&job);
    const v1::PreflightReport report = job.Check();
    const v1::Finding* finding = FindingOf(report, "DATA_SEPARATOR");
    return finding == nullptr ? "" : finding->problem() + "; " + finding->fix();
  };
  EXPECT_THAT(problem([](GoodJob*) {}), HasSubstr("50256 for GPT-2's tokens"));
  for (const char* good : {"50256", "0", "none"}) {
    EXPECT_EQ(problem([&](GoodJob* job) { Data(job)->set_separator(good); }), "") << good;
  }
  for (const char* bad : {"", "-1", "1048576", "50257", "None", "<|endoftext|>"}) {
    EXPECT_NE(problem([&](GoodJob* job) { Data(job)->set_separator(bad); }), "") << bad;
  }
  // A job file that names its tokenizer is read as before.
  EXPECT_EQ(problem([](GoodJob* job) { Data(job)->set_tokenizer(v1::TOKENIZER_BYTE); }), "");
  const auto index = [](GoodJob* job) {
    job->Write("train.idx", "MMIDIDX");
    job->Write("val.idx", "MMIDIDX");
  };
  EXPECT_EQ(problem(index), "");
  EXPECT_EQ(problem([](GoodJob* job) {
              std::filesystem::remove(job->PathOf("train.bin"));
              std::filesystem::remove(job->PathOf("val.bin"));
            }),
            "")
      << "files of a volume that is not mounted may be Megatron's";
  EXPECT_THAT(problem([&](GoodJob* job) {
                index(job);
                Data(job)->set_document_mask(true);
              }),
              HasSubstr("document_mask"));
  EXPECT_THAT(problem([](GoodJob* job) {
                Data(job)->set_separator("none");
                Data(job)->set_document_mask(true);
              }),
              HasSubstr("document_mask"));
  EXPECT_THAT(problem([](GoodJob* job) {
                Data(job)->set_source(v1::DATA_SOURCE_TEXT);
                Data(job)->set_separator("0");
              }),
              HasSubstr("only for source: tokens"));
}

// "FIELD: PROBLEM" of a rule's first finding, or "".
std::string FoundBy(const GoodJob& job, const std::string& rule) {
  const v1::PreflightReport report = job.Check();
  const v1::Finding* const finding = FindingOf(report, rule);
  return finding == nullptr ? "" : finding->field() + ": " + finding->problem();
}

std::string FixBy(const GoodJob& job, const std::string& rule) {
  const v1::PreflightReport report = job.Check();
  const v1::Finding* const finding = FindingOf(report, rule);
  return finding == nullptr ? "" : finding->fix();
}

TEST(DataRules, AStreamReadsFilesAndAWindowNeedsAStream) {
  const auto found = [](const std::function<void(GoodJob*)>& change,
                        const std::string& rule = "DATA_STREAM") {
    GoodJob job;
    Data(&job)->set_stream(true);
    Data(&job)->set_shuffle_window(100);
    change(&job);
    return FoundBy(job, rule);
  };
  EXPECT_EQ(found([](GoodJob*) {}), "");
  EXPECT_EQ(found([](GoodJob* job) { Mix(job, 3, 1); }), "");
  EXPECT_EQ(found([](GoodJob* job) { Data(job)->set_on_exhausted(v1::ON_EXHAUSTED_STOP); }), "");
  EXPECT_THAT(found([](GoodJob* job) { Data(job)->set_stream(false); }),
              HasSubstr("data.shuffle_window: set"));
  EXPECT_THAT(found([](GoodJob* job) {
                Data(job)->set_source(v1::DATA_SOURCE_SYNTHETIC);
                Data(job)->clear_path();
                Data(job)->clear_val_path();
              }),
              HasSubstr("data.stream: true"));
  EXPECT_THAT(found([](GoodJob* job) {
                std::filesystem::create_directory(job->PathOf("train.tokens"));
                Data(job)->set_source(v1::DATA_SOURCE_TOKENS);
                Data(job)->set_path(0, job->PathOf("train.tokens"));
              }),
              HasSubstr("train.tokens is prepared data"));
  for (const int32_t window : {0, -1, 1'000'001}) {
    EXPECT_THAT(found([&](GoodJob* job) { Data(job)->set_shuffle_window(window); }, "DATA_RANGE"),
                HasSubstr("data.shuffle_window: "));
  }
}

TEST(DataRules, AGoodMixtureBreaksNoRule) {
  GoodJob job;
  Mix(&job, 3, 1);
  EXPECT_TRUE(job.Check().accepted()) << job.Check().DebugString();
  job.context.check_files = false;
  EXPECT_TRUE(job.Check().accepted()) << job.Check().DebugString();
}

TEST(DataRules, AMixtureIsRefusedWhenSomethingIsMissingOrContradictsIt) {
  const auto found = [](const std::function<void(v1::DataSpec*)>& change,
                        const std::string& rule = "DATA_MIX") {
    GoodJob job;
    Mix(&job, 3, 1);
    change(Data(&job));
    return FoundBy(job, rule);
  };
  const auto mix = [](v1::DataSpec* data) { return data->mutable_mix(1); };
  EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->set_name("a b"); }),
              HasSubstr("data.mix[1].name: 'a b' (1 to 63"));
  EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->set_name("train"); }),
              HasSubstr("data.mix[1].name: 'train'"));
  EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->set_source(v1::DATA_SOURCE_UNIFORM); }),
              HasSubstr("data.mix[1].source: not"));
  EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->clear_weight(); }),
              HasSubstr("data.mix[1].weight: not set"));
  for (const double weight : {0.0, -1.0, std::nan("")}) {
    EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->set_weight(weight); }),
                HasSubstr("(above 0, at most 1,000,000)"));
  }
  EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->set_weight(2e6); }),
              HasSubstr("data.mix[0].weight: 3 is 1.5e-06"));
  EXPECT_THAT(found([](v1::DataSpec* d) { d->set_source(v1::DATA_SOURCE_TEXT); }),
              HasSubstr("data.source: set, but data.mix"));
  EXPECT_THAT(found([](v1::DataSpec* d) { d->add_path("/a"); }), HasSubstr("data.path: set"));
  EXPECT_THAT(found([](v1::DataSpec* d) { d->set_on_exhausted(v1::ON_EXHAUSTED_STOP); }),
              HasSubstr("data.on_exhausted: stop"));
  EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->clear_path(); }, "DATA_PATH_MISSING"),
              HasSubstr("data.mix[1].path: no files"));
  EXPECT_THAT(
      found([&](v1::DataSpec* d) { mix(d)->set_path(0, "/none/a.txt"); }, "DATA_UNREADABLE"),
      HasSubstr("data.mix[1].path[0]: /none/a.txt"));
  EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->set_path(0, "a.txt"); }, "PATH_INVALID"),
              HasSubstr("data.mix[1].path[0]: 'a.txt'"));
  EXPECT_THAT(found([&](v1::DataSpec* d) { mix(d)->set_text_field("t"); }, "DATA_TEXT_FIELD"),
              HasSubstr("data.mix[1].text_field: 't'"));
  EXPECT_THAT(found([](v1::DataSpec* d) { d->clear_val_path(); }, "EVAL_WITHOUT_DATA"),
              HasSubstr("train.eval_every: validation is on"));
}

TEST(DataRules, ASourceThatIsSmallForItsShareIsRepeated) {
  GoodJob job;
  Mix(&job, 1, 1);
  job.Write("more.txt", std::string(1 << 16, 'm'));
  EXPECT_THAT(FoundBy(job, "DATA_REPEATED"), HasSubstr("data.mix[1].path: every token"));
}

// 100 bytes of text in a line of 1,125.
std::string LinesWithLittleText(int count) {
  const std::string line =
      R"({"id": ")" + std::string(1000, 'i') + R"(", "text": ")" + std::string(100, 't') + "\"}\n";
  std::string lines;
  for (int i = 0; i < count; ++i) lines += line;
  return lines;
}

TEST(DataRules, OfJsonLinesOnlyTheTextCounts) {
  GoodJob job;
  Data(&job)->set_source(v1::DATA_SOURCE_JSONL);
  Data(&job)->set_path(0, job.PathOf("train.jsonl"));
  job.Write("train.jsonl", LinesWithLittleText(40));
  EXPECT_THAT(FoundBy(job, "DATA_TOO_SMALL"), HasSubstr("(one batch takes 4,098)"));
  job.Write("train.jsonl", LinesWithLittleText(2000));
  EXPECT_EQ(FoundBy(job, "DATA_TOO_SMALL"), "");
  EXPECT_THAT(FoundBy(job, "DATA_REPEATED"), HasSubstr("would be read about 102 times"));
}

TEST(DataRules, PatternsStandForTheFilesThatMatch) {
  GoodJob job;
  job.Write("shards/a-1.txt", std::string(2 << 20, 'a'));
  job.Write("shards/a-2.txt", std::string(2 << 20, 'b'));
  Data(&job)->set_path(0, job.PathOf("shards/a-*.txt"));
  EXPECT_TRUE(job.Check().accepted()) << job.Check().DebugString();
  job.Write("shards/a-3.txt", "");
  EXPECT_EQ(FoundBy(job, "DATA_UNREADABLE"), "");
  EXPECT_THAT(FoundBy(job, "DATA_EMPTY_FILES"), HasSubstr("1 of 3 files have 0 bytes"));
  job.Write("shards/c-1.txt", "");
  job.Write("shards/c-2.txt", "");
  Data(&job)->set_path(0, job.PathOf("shards/c-*.txt"));
  EXPECT_THAT(FoundBy(job, "DATA_UNREADABLE"), HasSubstr("c-1.txt: is empty"));
  EXPECT_EQ(FoundBy(job, "DATA_EMPTY_FILES"), "");
  Data(&job)->set_path(0, job.PathOf("shards/b-*.txt"));
  EXPECT_THAT(FoundBy(job, "DATA_UNREADABLE"), HasSubstr("data.path[0]: "));
  EXPECT_THAT(FoundBy(job, "DATA_UNREADABLE"), HasSubstr("no file matches this pattern"));
  Data(&job)->set_path(0, job.PathOf("*/a-1.txt"));
  EXPECT_THAT(FoundBy(job, "DATA_UNREADABLE"), HasSubstr("a wildcard in a folder's name"));
}

TEST(DataRules, ANamedSetMustNotBeTrainedOn) {
  GoodJob job;
  auto& sets = *Data(&job)->mutable_val();
  sets["prose"] = job.PathOf("val.txt");
  EXPECT_TRUE(job.Check().accepted()) << job.Check().DebugString();
  sets["prose"] = job.PathOf("tr*.txt");
  EXPECT_THAT(FoundBy(job, "VAL_NOT_DISJOINT"), HasSubstr("data.val.prose: "));
  EXPECT_EQ(FixBy(job, "VAL_NOT_DISJOINT"),
            "use validation files that are not in data.path, or remove the set");
  sets["prose"] = "";
  EXPECT_THAT(FoundBy(job, "VAL_SETS"), HasSubstr("data.val.prose: no file"));
}

// A job on books.jsonl, whose records are of the books a, b and c in turn.
class JobOnBooks : public GoodJob {
 public:
  JobOnBooks() {
    std::string lines;
    for (int i = 0; i < 300; ++i) {
      lines += std::string("{\"book\": \"") + "abc"[i % 3] + "\", \"text\": \"" +
               std::string(20'000, 'a') + "\"}\n";
    }
    Write("books.jsonl", lines);
    Data(this)->set_source(v1::DATA_SOURCE_JSONL);
    Data(this)->set_path(0, PathOf("books.jsonl"));
    Data(this)->clear_val_path();
    Data(this)->set_val_fraction(0.01);
  }

  void Except(const std::string& book) { (*Data(this)->mutable_except())["book"].add_value(book); }
  void AddSet(const std::string& book) {
    (*Data(this)->mutable_val())["books"] = PathOf("books.jsonl");
    v1::RecordFields& fields = (*Data(this)->mutable_val_where())["books"];
    (*fields.mutable_field())["book"].add_value(book);
  }
};

TEST(DataRules, ASetMayBeOfTheSameFileIfTrainingLeavesItsRecordsOut) {
  JobOnBooks job;
  job.AddSet("c");
  EXPECT_THAT(FoundBy(job, "VAL_NOT_DISJOINT"), HasSubstr("data.val.books: "));
  EXPECT_EQ(FixBy(job, "VAL_NOT_DISJOINT"),
            "use validation files that are not in data.path, leave their records out of training "
            "with data.except, or remove the set");
  Data(&job)->clear_val_where();
  EXPECT_EQ(FixBy(job, "VAL_NOT_DISJOINT"),
            "use validation files that are not in data.path, choose records with data.val_where "
            "and leave these out of training with data.except, or remove the set");
  job.AddSet("c");
  job.Except("b");
  EXPECT_THAT(FoundBy(job, "VAL_NOT_DISJOINT"), HasSubstr("data.val.books: "));
  job.Except("c");
  EXPECT_EQ(FoundBy(job, "VAL_NOT_DISJOINT"), "");
  EXPECT_TRUE(job.Check().accepted()) << job.Check().DebugString();
}

TEST(DataRules, AFilterDoesNotDivideTheRecordsOfPathAndValPath) {
  JobOnBooks job;
  Data(&job)->set_val_fraction(0);
  Data(&job)->add_val_path(job.PathOf("books.jsonl"));
  job.Except("c");
  EXPECT_EQ(FixBy(job, "VAL_NOT_DISJOINT"),
            "use validation files that are not in data.path, or set data.val_fraction in place of "
            "data.val_path");
}

TEST(DataRules, OnlyWhatPassesCounts) {
  JobOnBooks job;
  Data(&job)->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
  EXPECT_THAT(FoundBy(job, "DATA_TOO_SMALL"), HasSubstr("about 6,000,000 tokens"));
  job.Except("b");
  job.Except("c");
  EXPECT_THAT(FoundBy(job, "DATA_TOO_SMALL"), HasSubstr("about 2,000,000 tokens"));
}

TEST(DataRules, AFieldOrAValueThatNoRecordHasIsRefused) {
  JobOnBooks job;
  job.Except("d");
  EXPECT_THAT(FoundBy(job, "DATA_WHERE_VALUES"),
              HasSubstr("data.except.book: none of 300 records has the value 'd'"));
  EXPECT_EQ(FindingOf(job.Check(), "DATA_WHERE_VALUES")->fix(),
            "check the spelling: the first other values are 'a', 'b', 'c'");
  Data(&job)->clear_except();
  (*Data(&job)->mutable_where())["boke"].add_value("a");
  EXPECT_THAT(FoundBy(job, "DATA_WHERE_VALUES"), HasSubstr("data.where.boke: none of 300 records"));
  Data(&job)->clear_where();
  job.AddSet("e");
  EXPECT_THAT(FoundBy(job, "DATA_WHERE_VALUES"), HasSubstr("data.val_where.books.book: none of"));
}

TEST(DataRules, AValueThatTheFirstRecordsHaveNotIsAWarning) {
  GoodJob job;
  for (int file = 0; file < 40; ++file) {
    job.Write(absl::StrFormat("part-%02d.jsonl", file),
              absl::StrFormat("{\"book\": \"%s\", \"text\": \"%s\"}\n", file < 35 ? "a" : "b",
                              std::string(200'000, 'a')));
  }
  Data(&job)->set_source(v1::DATA_SOURCE_JSONL);
  Data(&job)->set_path(0, job.PathOf("part-*.jsonl"));
  Data(&job)->clear_val_path();
  Data(&job)->set_val_fraction(0.2);
  (*Data(&job)->mutable_except())["book"].add_value("b");
  EXPECT_THAT(FoundBy(job, "DATA_WHERE_RARE"),
              HasSubstr("data.except.book: none of the first 32 records has the value 'b'"));
  EXPECT_TRUE(job.Check().accepted()) << job.Check().DebugString();
  (*Data(&job)->mutable_except())["book"].set_value(0, "a");
  EXPECT_EQ(FoundBy(job, "DATA_WHERE_RARE"), "");
  (*Data(&job)->mutable_where())["boke"].add_value("b");
  EXPECT_THAT(FoundBy(job, "DATA_WHERE_VALUES"),
              HasSubstr("data.where.boke: none of the first 32 records has a text"));
}

// The keys of both are data.val_where.a.b.c.
TEST(DataRules, FiltersOfTwoSetsWithDotsInTheirNamesStayApart) {
  JobOnBooks job;
  job.Write("sets.jsonl", R"({"b.c": "x", "c": "p", "text": "one"})"
                          "\n"
                          R"({"b.c": "x", "c": "q", "text": "two"})"
                          "\n");
  const auto add = [&](const std::string& set, const std::string& field,
                       const std::vector<std::string>& values) {
    (*Data(&job)->mutable_val())[set] = job.PathOf("sets.jsonl");
    v1::RecordFields& fields = (*Data(&job)->mutable_val_where())[set];
    for (const std::string& value : values) (*fields.mutable_field())[field].add_value(value);
  };
  add("a", "b.c", {"x"});
  add("a.b", "c", {"p", "q"});
  EXPECT_EQ(FoundBy(job, "DATA_WHERE_VALUES"), "");
  add("a.b", "c", {"r"});
  EXPECT_THAT(FoundBy(job, "DATA_WHERE_VALUES"),
              HasSubstr("data.val_where.a.b.c: none of 2 records has the value 'r'"));
  add("a", "b.c", std::vector<std::string>(1000, "y"));
  EXPECT_THAT(FoundBy(job, "DATA_WHERE"),
              HasSubstr("data.val_where.a.b.c: 1001 values (from 1 to 1,000)"));
}

TEST(DataRules, ARecordThatIsLeftOutNeedsNoText) {
  JobOnBooks job;
  job.Write("books.jsonl", "{\"book\": \"a\"}\n{\"book\": \"b\", \"text\": \"" +
                               std::string(4 << 20, 'a') + "\"}\n");
  EXPECT_THAT(FoundBy(job, "DATA_NOT_JSONL"), HasSubstr("line 1: no field 'text'"));
  job.Except("a");
  EXPECT_EQ(FoundBy(job, "DATA_NOT_JSONL"), "");
}

TEST(DataRules, AFilterHasFieldsWithValuesAndFilesWithFields) {
  const auto found = [](const std::function<void(v1::DataSpec*)>& change) {
    JobOnBooks job;
    change(Data(&job));
    return FoundBy(job, "DATA_WHERE");
  };
  const auto where = [](v1::DataSpec* data) { return data->mutable_where(); };
  EXPECT_EQ(found([&](v1::DataSpec* d) { (*where(d))["book"].add_value("a"); }), "");
  EXPECT_THAT(found([&](v1::DataSpec* d) { (*where(d))["book"]; }),
              HasSubstr("data.where.book: 0 values (from 1 to 1,000)"));
  EXPECT_THAT(found([&](v1::DataSpec* d) { (*where(d))[""].add_value("a"); }),
              HasSubstr("a field of 0 bytes"));
  EXPECT_THAT(
      found([&](v1::DataSpec* d) { (*where(d))["book"].add_value(std::string(1001, 'a')); }),
      HasSubstr("a value of 1001 bytes (at most 1,000)"));
  EXPECT_THAT(found([&](v1::DataSpec* d) {
                for (const char* value : {"1", "2", "1.0"}) (*where(d))["book"].add_value(value);
              }),
              HasSubstr("'1.0' is given twice"));
  EXPECT_THAT(found([&](v1::DataSpec* d) {
                for (int i = 0; i < 17; ++i) (*where(d))["f" + std::to_string(i)].add_value("a");
              }),
              HasSubstr("one of 17 fields (at most 16)"));
  EXPECT_THAT(found([](v1::DataSpec* d) { (*d->mutable_val_where())["none"]; }),
              HasSubstr("data.val_where.none: no set of data.val has this name"));
}

TEST(DataRules, AFilterOfParquetNamesColumnsOfTexts) {
  JobOnBooks job;
  job.Write("rows.parquet", ParquetFileOf({{"book", 5}, {"text", 50}}));
  Data(&job)->set_source(v1::DATA_SOURCE_PARQUET);
  Data(&job)->set_path(0, job.PathOf("rows.parquet"));
  job.Except("a");
  EXPECT_EQ(FoundBy(job, "DATA_WHERE_VALUES"), "");
  (*Data(&job)->mutable_except())["year"].add_value("7");
  EXPECT_THAT(FoundBy(job, "DATA_WHERE_VALUES"),
              HasSubstr("data.except.year: " + job.PathOf("rows.parquet") +
                        ": no column 'year' (book, text)"));
  EXPECT_EQ(FindingOf(job.Check(), "DATA_WHERE_VALUES")->fix(), "set data.except.year");
}

TEST(DataRules, ATextFieldNeedsASourceWithFields) {
  GoodJob job;
  job.Write("train.jsonl", "{\"body\": \"" + std::string(4 << 20, 'a') + "\"}\n");
  job.Write("val.jsonl", "{\"body\": \"b\"}\n");
  Data(&job)->set_source(v1::DATA_SOURCE_JSONL);
  Data(&job)->set_path(0, job.PathOf("train.jsonl"));
  Data(&job)->set_val_path(0, job.PathOf("val.jsonl"));
  EXPECT_THAT(FoundBy(job, "DATA_NOT_JSONL"), HasSubstr("no field 'text' (fields: body)"));
  Data(&job)->set_text_field("body");
  EXPECT_EQ(FoundBy(job, "DATA_NOT_JSONL"), "");
  EXPECT_EQ(FoundBy(job, "DATA_TEXT_FIELD"), "");
  Data(&job)->set_text_field("");
  EXPECT_THAT(FoundBy(job, "DATA_TEXT_FIELD"), HasSubstr("data.text_field: 0 bytes"));
}

TEST(DataRules, ATextFieldIsLookedForInArchivesAndParquetToo) {
  GoodJob job;
  const std::string line = "{\"body\": \"" + std::string(100'000, 'a') + "\"}\n";
  std::string packed(ZSTD_compressBound(line.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), line.data(), line.size(), 3));
  job.Write("train.jsonl.zst", packed);
  Data(&job)->clear_val_path();
  Data(&job)->set_val_fraction(0.1);
  Data(&job)->set_source(v1::DATA_SOURCE_JSONL);
  Data(&job)->set_path(0, job.PathOf("train.jsonl.zst"));
  EXPECT_THAT(FoundBy(job, "DATA_NOT_JSONL"),
              HasSubstr("train.jsonl.zst: line 1: no field 'text' (fields: body)"));
  Data(&job)->set_text_field("body");
  EXPECT_EQ(FoundBy(job, "DATA_NOT_JSONL"), "");
  job.Write("train.jsonl.zst", packed.substr(0, packed.size() / 2));
  EXPECT_EQ(FoundBy(job, "DATA_NOT_JSONL"), "") << "half a line";

  job.Write("rows.parquet", ParquetFileOf({{"url", 5}, {"content", 50}}));
  Data(&job)->set_source(v1::DATA_SOURCE_PARQUET);
  Data(&job)->set_path(0, job.PathOf("rows.parquet"));
  EXPECT_THAT(FoundBy(job, "DATA_NOT_PARQUET"),
              HasSubstr("rows.parquet: no column 'body' (url, content)"));
  EXPECT_EQ(FindingOf(job.Check(), "DATA_NOT_PARQUET")->fix(), "set data.text_field");
  Data(&job)->set_text_field("content");
  EXPECT_EQ(FoundBy(job, "DATA_NOT_PARQUET"), "");
}

// Documents of JSON lines are held out whole, and those of a stream by chance.
TEST(Preflight, AFewDocumentsAreNotDividedAsTheFractionSays) {
  const auto found = [](int documents, const std::function<void(v1::DataSpec*)>& change) {
    GoodJob job;
    std::string lines;
    for (int i = 0; i < documents; ++i) {
      lines += "{\"text\": \"" + std::string(20'000, 'a') + "\"}\n\n";
    }
    job.Write("train.jsonl", lines);
    Data(&job)->set_source(v1::DATA_SOURCE_JSONL);
    Data(&job)->set_path(0, job.PathOf("train.jsonl"));
    Data(&job)->clear_val_path();
    Data(&job)->set_val_fraction(0.01);
    change(Data(&job));
    const v1::PreflightReport report = job.Check();
    const v1::Finding* const share = FindingOf(report, "VAL_SHARE");
    const std::string fix = share == nullptr ? "" : "; " + share->fix();
    return FoundBy(job, "VAL_SHARE") + fix + FoundBy(job, "VAL_TOO_SMALL");
  };
  const auto nothing = [](v1::DataSpec*) {};
  EXPECT_THAT(found(1, nothing), HasSubstr("0.01 of one document"));
  EXPECT_THAT(
      found(5, nothing),
      HasSubstr("0.01 of 5 documents (whole ones are held out, so about 20 % of the data)"));
  EXPECT_THAT(found(5, nothing), HasSubstr("set val_fraction: 0.2,"));
  EXPECT_EQ(found(5, [](v1::DataSpec* data) { data->set_val_fraction(0.2); }), "");
  EXPECT_NE(found(66, nothing), "");
  EXPECT_EQ(found(67, nothing), "");
  const auto stream = [](v1::DataSpec* data) { data->set_stream(true); };
  EXPECT_THAT(found(200, stream), HasSubstr("200 documents (a stream holds out whole ones"));
  EXPECT_EQ(found(1000, stream), "");
}

TEST(DataRules, LooksForBadLinesAtTheBeginningTheMiddleAndTheEndOfAFile) {
  GoodJob job;
  Data(&job)->set_source(v1::DATA_SOURCE_JSONL);
  Data(&job)->set_path(0, job.PathOf("train.jsonl"));
  Data(&job)->set_val_path(0, job.PathOf("val.jsonl"));
  job.Write("val.jsonl", "\x1e{\"text\": \"b\"}\n{\"text\": null}\n");
  const std::string good = "{\"score\": NaN, \"text\": \"" + std::string(73, 'a') + "\"}\n";
  ASSERT_EQ(good.size(), 100u);
  std::string lines;
  while (lines.size() < 4'000'000) lines += good;
  const auto found = [&](size_t at, const std::string& bad) {
    std::string with = lines;
    with.replace(at, bad.size(), bad);
    job.Write("train.jsonl", with);
    return FoundBy(job, "DATA_NOT_JSONL");
  };
  EXPECT_EQ(found(0, ""), "");
  EXPECT_THAT(found(500'000, "{\"text\": 7 }"),
              HasSubstr("train.jsonl: line 5001: not valid JSON"));
  EXPECT_THAT(found(2'000'100, "x"), HasSubstr("train.jsonl: line at byte 2000100: not valid"));
  EXPECT_THAT(found(3'999'900, "x"), HasSubstr("train.jsonl: line at byte 3999900: not valid"));
  EXPECT_THAT(found(0, "["), HasSubstr("line 1: a JSON array, not an object"));
  EXPECT_THAT(FindingOf(job.Check(), "DATA_NOT_JSONL")->fix(), HasSubstr("jq -c '.[]' FILE"));
}

TEST(Preflight, DataAtAUrlIsLeftToTheWorkerAndTheReportSaysSo) {
  for (const auto& [source, name] :
       std::map<v1::DataSource, std::string>{{v1::DATA_SOURCE_TEXT, "a.txt?sig=x.bin"},
                                             {v1::DATA_SOURCE_JSONL, "a.jsonl"},
                                             {v1::DATA_SOURCE_PARQUET, "a.parquet?download=true"},
                                             {v1::DATA_SOURCE_TOKENS, "a.bin"}}) {
    GoodJob job;
    Data(&job)->set_source(source);
    Data(&job)->set_path(0, "https://example.com/" + name);
    Data(&job)->clear_val_path();
    Data(&job)->set_val_fraction(0.01);
    const v1::PreflightReport report = job.Check();
    for (const v1::Finding& finding : report.findings()) {
      EXPECT_LT(finding.severity(), v1::SEVERITY_ERROR)
          << name << ": " << finding.ShortDebugString();
    }
    EXPECT_THAT(FoundBy(job, "DATA_NOT_FETCHED"), HasSubstr(name + " is not fetched here"));
  }
  EXPECT_EQ(FoundBy(GoodJob(), "DATA_NOT_FETCHED"), "");
}

// The size of data.tokenizer: bpe is that of its file.
TEST(Preflight, AVocabularyHasRoomForTheTokenizersFile) {
  GoodJob job;
  job.Write("tokenizer.json", R"({"model": {"vocab": {"<|endoftext|>": 0, "b": 299}}})");
  Data(&job)->set_tokenizer(v1::TOKENIZER_BPE);
  Data(&job)->set_tokenizer_path(job.PathOf("tokenizer.json"));
  job.spec.mutable_model()->set_vocab(299);
  EXPECT_THAT(FoundBy(job, "VOCAB_TOO_SMALL"), HasSubstr("299 (the tokenizer has 300 tokens)"));
  job.spec.mutable_model()->set_vocab(300);
  EXPECT_EQ(FoundBy(job, "VOCAB_TOO_SMALL"), "");
  EXPECT_EQ(FoundBy(job, "TOKENIZER_MISSING"), "");
  job.spec.mutable_model()->clear_vocab();
  EXPECT_EQ(FoundBy(job, "VOCAB_TOO_SMALL"), "");
  EXPECT_THAT(FoundBy(job, "MODEL_RANGE"), HasSubstr("not set (tokenizer: bpe"));
  job.spec.mutable_model()->set_vocab(2);
  job.Write("tokenizer.json", "{");
  EXPECT_THAT(FoundBy(job, "TOKENIZER_MISSING"), HasSubstr("is not JSON"));
  std::filesystem::remove(job.PathOf("tokenizer.json"));
  EXPECT_THAT(FoundBy(job, "TOKENIZER_MISSING"), HasSubstr("No such file"));
  Data(&job)->clear_tokenizer_path();
  EXPECT_THAT(FoundBy(job, "TOKENIZER_MISSING"), HasSubstr("not set (a tokenizer.json"));
  job.Write("tokenizer.json", R"({"model": {"vocab": {"a": 0, "b": 299}}})");
  Data(&job)->set_tokenizer_path(job.PathOf("tokenizer.json"));
  EXPECT_THAT(FoundBy(job, "TOKENIZER_MISSING"),
              AllOf(HasSubstr("no token <|endoftext|>, "), HasSubstr("(one begins a document)")));
}

// Of token files, for the separator that the job does not name, and for the texts that it samples.
TEST(Preflight, TokenFilesNeedTheTokenizerForTheirSeparatorAndForSamples) {
  GoodJob job;
  job.Write("train.bin", std::string(1 << 20, '\0'));
  Data(&job)->set_source(v1::DATA_SOURCE_TOKENS);
  Data(&job)->set_path(0, job.PathOf("train.bin"));
  Data(&job)->set_val_path(0, job.PathOf("train.bin"));
  Data(&job)->set_tokenizer(v1::TOKENIZER_GPT2);
  EXPECT_THAT(FoundBy(job, "TOKENIZER_MISSING"), HasSubstr("not set (a folder with GPT-2's"));
  Data(&job)->set_separator("50256");
  EXPECT_EQ(FoundBy(job, "TOKENIZER_MISSING"), "");
  job.spec.mutable_sample()->add_prompts("Once");
  EXPECT_THAT(FoundBy(job, "TOKENIZER_MISSING"), HasSubstr("not set (a folder with GPT-2's"));
}

TEST(Preflight, AFolderIsNamedByAPattern) {
  GoodJob job;
  std::filesystem::create_directory(job.PathOf("books"));
  Data(&job)->set_path(0, job.PathOf("books"));
  EXPECT_THAT(FoundBy(job, "DATA_UNREADABLE"), HasSubstr("books: is a folder (must be a file)"));
  const v1::PreflightReport report = job.Check();
  EXPECT_EQ(FindingOf(report, "DATA_UNREADABLE")->fix(),
            "list its files, or name them by a pattern: '" + job.PathOf("books/*.ext") + "'");
}

TEST(Preflight, AUrlIsNoPlaceForAnythingButData) {
  GoodJob job;
  Data(&job)->set_tokenizer_path("https://example.com/gpt2");
  EXPECT_THAT(FoundBy(job, "PATH_INVALID"), HasSubstr("data.tokenizer_path"));
  GoodJob out;
  out.spec.mutable_train()->set_out_dir("https://example.com/out");
  EXPECT_THAT(FoundBy(out, "PATH_INVALID"), HasSubstr("train.out_dir"));
}

TEST(Preflight, FindsTheSameFileUnderAnotherName) {
  GoodJob job;
  std::filesystem::create_symlink(job.PathOf("train.txt"), job.PathOf("other.txt"));
  Data(&job)->set_val_path(0, job.PathOf("other.txt"));
  EXPECT_NE(FindingOf(job.Check(), "VAL_NOT_DISJOINT"), nullptr);
}

TEST(Preflight, RefusesTextThatEndsBeforeTheRunWhenToldToStop) {
  GoodJob job;
  Data(&job)->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
  EXPECT_THAT(FindingOf(job.Check(), "DATA_TOO_SMALL")->problem(), HasSubstr("on_exhausted"));
}

}  // namespace
}  // namespace nsa
