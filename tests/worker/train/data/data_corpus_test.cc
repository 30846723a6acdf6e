#include <sys/resource.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/data/data_files.h"
#include "common/job/data/file_text.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"
#include "tests/worker/train/data/read/parquet_writer.h"
#include "worker/train/data/corpus.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

v1::DataSpec Spec(v1::DataSource source, const std::vector<std::filesystem::path>& files) {
  v1::DataSpec spec;
  spec.set_source(source);
  for (const auto& file : files) spec.add_path(file.string());
  return spec;
}

absl::StatusOr<Corpus> Load(const v1::DataSpec& spec, int32_t vocab = 256) {
  return LoadCorpus(spec, vocab, absl::Seconds(20));
}

std::string TextOf(const TokenStore& store) {
  std::vector<int32_t> tokens(store.size());
  EXPECT_OK(store.Copy(0, tokens));
  return std::string(tokens.begin(), tokens.end());
}

std::multiset<std::string> DocumentsOf(const TokenStore& store) {
  std::multiset<std::string> documents;
  std::string document;
  for (const char c : TextOf(store) + '\0') {
    if (c != '\0') {
      document += c;
    } else if (!document.empty()) {
      documents.insert(std::exchange(document, ""));
    }
  }
  return documents;
}

TEST(LoadCorpus, NamesFileAndLineOfABadLine) {
  const TempDir dir;
  Write(dir / "a.jsonl", "{\"text\": \"one\"}\n\n{\"text\": 7}\n");
  EXPECT_THAT(
      Load(Spec(v1::DATA_SOURCE_JSONL, {dir / "a.jsonl"})),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("a.jsonl:3:"), HasSubstr("the field 'text' is not a string"))));
  Write(dir / "b.jsonl", "{\"text\": \"one\"}\n{\"text\": \"tw\n");
  EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_JSONL, {dir / "b.jsonl"})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("b.jsonl:2:"), HasSubstr("not valid JSON"))));
}

TEST(LoadCorpus, ReportsArchivesThatWereCutOffOrDamaged) {
  const TempDir dir;
  const std::string lines = ManyLines(500);
  for (const auto& [name, archive] : std::map<std::string, std::string>{
           {"a.jsonl.gz", Gzip(lines)}, {"a.jsonl.zst", Zstd(lines)}}) {
    Write(dir / name, archive.substr(0, archive.size() - 20));
    EXPECT_THAT(
        Load(Spec(v1::DATA_SOURCE_JSONL, {dir / name})),
        StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(name), HasSubstr("ends within"))));
    for (const char* other : {"this is no archive, it only has the name of one", "{}"}) {
      Write(dir / name, other);
      EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_JSONL, {dir / name})),
                  StatusIs(absl::StatusCode::kDataLoss,
                           AllOf(HasSubstr(name), HasSubstr("as the ending of its name says"))));
    }
    // Zeros behind a gzip archive are padding (see documents_test), but not in front of more.
    for (const std::string& garbage :
         {std::string("{\"text\": \"b\"}\n"), std::string(512, '\0') + "{\"text\": \"b\"}\n"}) {
      Write(dir / name, archive + garbage);
      EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_JSONL, {dir / name})),
                  StatusIs(absl::StatusCode::kDataLoss,
                           AllOf(HasSubstr(name), HasSubstr("follow the end of the archive"))));
    }
  }
  Write(dir / "padded.jsonl.zst", Zstd(lines) + std::string(512, '\0'));
  EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_JSONL, {dir / "padded.jsonl.zst"})),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("follow the end of the archive")));
}

TEST(LoadCorpus, ReadsAZstdFileWithALongWindow) {
  const TempDir dir;
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  Write(dir / "a.jsonl.zst", LongZstd(lines));
  const auto corpus = Load(Spec(v1::DATA_SOURCE_JSONL, {dir / "a.jsonl.zst"}));
  ASSERT_OK(corpus);
  EXPECT_THAT(DocumentsOf(*corpus->parts[0].train), testing::ElementsAre("one", "two"));
  EXPECT_EQ(UnpackedHead(dir / "a.jsonl.zst", 100), lines) << "as preflight looks at it";
}

TEST(LoadCorpus, RefusesAnArchiveWithoutItsEndingAndOtherFilesThatAreNotText) {
  const TempDir dir;
  const std::string lines = ManyLines(50);
  for (const auto& [content, why] : std::map<std::string, std::string>{
           {Gzip(lines), "is a gzip archive, not text; give its name the ending .gz"},
           {Zstd(lines), "is a Zstandard archive, not text"},
           {"\x93NUMPY" + std::string(200, '\0'), "is a NumPy .npy array, not text"}}) {
    for (const auto source : {v1::DATA_SOURCE_JSONL, v1::DATA_SOURCE_TEXT}) {
      Write(dir / "a.jsonl", content);
      EXPECT_THAT(Load(Spec(source, {dir / "a.jsonl"})),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("a.jsonl: "), HasSubstr(why))));
    }
  }
  Write(dir / "a.txt", "PAR1 is how a Parquet file begins, and %PDF- a PDF document; 12345678{\"");
  EXPECT_OK(Load(Spec(v1::DATA_SOURCE_TEXT, {dir / "a.txt"})));
}

TEST(LoadCorpus, NamesAMissingFile) {
  const TempDir dir;
  EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_TEXT, {dir / "none.txt"})),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.txt")));
  EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_TEXT, {dir.path()})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a folder")));
}

TEST(LoadCorpus, KeepsEveryByteOfEveryDocumentBehindASeparator) {
  const TempDir dir;
  Write(dir / "a.txt", "first");
  Write(dir / "b.txt", "second");
  const auto corpus = Load(Spec(v1::DATA_SOURCE_TEXT, {dir / "a.txt", dir / "b.txt"}));
  ASSERT_OK(corpus);
  EXPECT_EQ(TextOf(*corpus->parts[0].train), std::string("\0first\0second", 13));
  EXPECT_EQ(corpus->info.documents, 2);
  EXPECT_EQ(corpus->info.tokens, 13);
}

TEST(LoadCorpus, RefusesATokenOutsideTheVocabularyNamingItsPlace) {
  const TempDir dir;
  Write(dir / "a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"xyz\"}\n");
  EXPECT_OK(Load(Spec(v1::DATA_SOURCE_JSONL, {dir / "a.jsonl"}), 'z' + 1));
  EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_JSONL, {dir / "a.jsonl"}), 'z'),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a.jsonl:2: token 122"), HasSubstr("model.vocab is 122"))));
}

TEST(LoadCorpus, TokenFilesAreLittleEndianAndSplitAtTheSeparator) {
  const TempDir dir;
  Write(dir / "a.bin", std::string("\x01\x00\x02\x01\x00\x00\x03\x00", 8));
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_TOKENS, {dir / "a.bin"});
  spec.set_tokenizer(v1::TOKENIZER_BYTE);  // as in job files of before data.separator
  const auto corpus = Load(spec, 1000);
  ASSERT_OK(corpus);
  std::vector<int32_t> tokens(corpus->parts[0].train->size());
  EXPECT_OK(corpus->parts[0].train->Copy(0, tokens));
  EXPECT_THAT(tokens, testing::ElementsAre(0, 1, 0x102, 0, 3));
  EXPECT_EQ(corpus->info.documents, 2);
  Write(dir / "odd.bin", "123");
  EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_TOKENS, {dir / "odd.bin"}), 1000),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("odd.bin: 3 bytes")));
}

// Tokens 1 2 | 0 3 | 4 with separator 50256.
std::string Gpt2Shard() { return std::string("\x50\xc4\1\0\2\0\x50\xc4\0\0\3\0\x50\xc4\4\0", 16); }

std::vector<int32_t> TokensOf(const absl::StatusOr<Corpus>& corpus) {
  EXPECT_OK(corpus);
  if (!corpus.ok()) return {};
  std::vector<int32_t> tokens(corpus->parts[0].train->size());
  EXPECT_OK(corpus->parts[0].train->Copy(0, tokens));
  return tokens;
}

TEST(LoadCorpus, TokenFilesAreSplitAtTheSeparatorThatTheJobNames) {
  const TempDir dir;
  Write(dir / "a.bin", Gpt2Shard());
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_TOKENS, {dir / "a.bin"});
  EXPECT_THAT(Load(spec, 50257),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a.bin: "), HasSubstr("data.separator is not set"),
                             HasSubstr("50256 for GPT-2"), HasSubstr("none"))));
  spec.set_separator("50256");
  const auto named = Load(spec, 50257);
  EXPECT_THAT(TokensOf(named), testing::ElementsAre(50256, 1, 2, 50256, 0, 3, 50256, 4));
  EXPECT_EQ(named->info.documents, 3);
  EXPECT_EQ(named->separator, 50256);
  spec.set_separator("none");
  const auto none = Load(spec, 50257);
  EXPECT_THAT(TokensOf(none), testing::ElementsAre(50256, 1, 2, 50256, 0, 3, 50256, 4));
  EXPECT_EQ(none->info.documents, 1);
  EXPECT_EQ(none->separator, kNoSeparator);
  spec.set_document_mask(true);
  EXPECT_THAT(Load(spec, 50257),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.document_mask")));
  spec.set_separator("</s>");
  EXPECT_THAT(Load(spec, 50257),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.separator: '</s>'")));
  spec.set_separator("50256");
  EXPECT_THAT(Load(spec, 50256), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("the document separator: token 50256")));
  v1::DataSpec text = Spec(v1::DATA_SOURCE_TEXT, {dir / "a.bin"});
  text.set_separator("0");
  EXPECT_THAT(Load(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("data.separator: 0 (only for")));
}

TEST(LoadCorpus, ATokenFileWithoutSeparatorsIsHeldOutInPassages) {
  const TempDir dir;
  std::string tokens;
  for (int i = 0; i < 100000; ++i) {
    tokens += {static_cast<char>(i), static_cast<char>(i >> 8)};
  }
  Write(dir / "a.bin", tokens);
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_TOKENS, {dir / "a.bin"});
  spec.set_separator("none");
  spec.set_val_fraction(0.2);
  const auto corpus = Load(spec, 65536);
  ASSERT_OK(corpus);
  EXPECT_EQ(corpus->info.documents + corpus->info.val_documents, 13);  // 100,000 / 8,192
  EXPECT_EQ(corpus->info.tokens + corpus->info.val_tokens, 100000);
}

TEST(LoadCorpus, HoldsOutAFractionSoThatNoDocumentIsOnBothSides) {
  const TempDir dir;
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    lines += absl::StrCat("{\"text\": \"document number ", i % 1000,
                          "\"}\n");  // each document three times
  }
  Write(dir / "a.jsonl", lines);
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_JSONL, {dir / "a.jsonl"});
  spec.set_val_fraction(0.2);
  const auto corpus = Load(spec);
  ASSERT_OK(corpus);
  const auto train = DocumentsOf(*corpus->parts[0].train), val = DocumentsOf(*corpus->parts[0].val);
  EXPECT_EQ(train.size() + val.size(), 3000u);
  for (const std::string& document : val) EXPECT_EQ(train.count(document), 0u) << document;
  // 600 ± 5·√(1000·0.16)·3.
  EXPECT_NEAR(static_cast<double>(val.size()), 600, 190);
}

TEST(LoadCorpus, ATinyFractionHoldsOutOneDocument) {
  const TempDir dir;
  Write(dir / "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_JSONL, {dir / "a.jsonl"});
  spec.set_val_fraction(1e-9);
  const auto corpus = Load(spec);
  ASSERT_OK(corpus);
  EXPECT_EQ(corpus->info.val_documents, 1);
  EXPECT_EQ(corpus->info.documents, 2);
  auto all = DocumentsOf(*corpus->parts[0].train);
  all.merge(DocumentsOf(*corpus->parts[0].val));
  EXPECT_THAT(all, testing::UnorderedElementsAre("one", "two", "three"));
}

TEST(LoadCorpus, RefusesAFractionOfOneDocument) {
  const TempDir dir;
  Write(dir / "a.jsonl", "{\"text\": \"one\"}\n");
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_JSONL, {dir / "a.jsonl"});
  spec.set_val_fraction(0.1);
  EXPECT_THAT(Load(spec), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("val_fraction")));
}

TEST(LoadCorpus, HoldsOutPassagesOfATextFileWithoutLosingAByte) {
  const TempDir dir;
  std::string text;
  for (int i = 0; text.size() < 600000; ++i) {
    text += absl::StrCat("Speaker ", i, ":\nSome words of line ", i * i, ".\n\n");
  }
  Write(dir / "play.txt", text);
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_TEXT, {dir / "play.txt"});
  spec.set_val_fraction(0.1);
  const auto corpus = Load(spec);
  ASSERT_OK(corpus);
  EXPECT_GT(corpus->info.documents, 20);
  EXPECT_GE(corpus->info.val_documents, 1);
  const int64_t documents = corpus->info.documents + corpus->info.val_documents;
  EXPECT_EQ(corpus->info.tokens + corpus->info.val_tokens,
            static_cast<int64_t>(text.size()) + documents);
  for (const std::string& passage : DocumentsOf(*corpus->parts[0].val)) {
    EXPECT_THAT(text, HasSubstr(passage));
    EXPECT_THAT(passage, testing::StartsWith("Speaker"));
    EXPECT_THAT(passage, testing::EndsWith("\n\n"));
  }
  EXPECT_OK(Load(Spec(v1::DATA_SOURCE_TEXT, {dir / "play.txt"})));
}

TEST(LoadCorpus, DropsTrainingCopiesOfValidationDocumentsAndCountsThem) {
  const TempDir dir;
  Write(dir / "train.jsonl",
        "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"one\"}\n{\"text\": \"six\"}\n");
  Write(dir / "val.jsonl", "{\"id\": 3, \"text\": \"one\"}\n");
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_JSONL, {dir / "train.jsonl"});
  spec.add_val_path((dir / "val.jsonl").string());
  const auto corpus = Load(spec);
  ASSERT_OK(corpus);
  EXPECT_EQ(corpus->info.dropped_documents, 2);
  EXPECT_THAT(DocumentsOf(*corpus->parts[0].train), testing::UnorderedElementsAre("two", "six"));
  EXPECT_THAT(DocumentsOf(*corpus->parts[0].val), testing::UnorderedElementsAre("one"));
}

TEST(LoadCorpus, CountsTheRowsOfParquetFilesThatHaveNoText) {
  const TempDir dir;
  Write(dir / "a.parquet", ParquetText({"one", std::nullopt, "two", std::nullopt}, {}).Write());
  Write(dir / "val.parquet", ParquetText({std::nullopt, "six"}, {}).Write());
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_PARQUET, {dir / "a.parquet"});
  spec.add_val_path((dir / "val.parquet").string());
  const auto corpus = Load(spec);
  ASSERT_OK(corpus);
  EXPECT_EQ(corpus->info.documents, 2);
  const v1::CorpusSummary summary = SummaryOf(corpus->info);
  EXPECT_EQ(summary.null_rows(), 3) << "those of both sides";
  EXPECT_EQ(summary.documents(), 2);
}

TEST(LoadCorpus, NotesATextThatIsNotUtf8) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, "Gr\xf6\xdf", "e ", i, "\n\n");
  Write(dir / "latin.txt", text);
  Write(dir / "good.txt", absl::StrCat(std::string(40'000, 'x'), "\n\nGröße\n"));
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_TEXT, {dir / "good.txt", dir / "latin.txt"});
  spec.set_val_fraction(0.1);
  const auto corpus = Load(spec);
  ASSERT_OK(corpus);
  ASSERT_EQ(corpus->info.notes.size(), 1u);
  EXPECT_EQ(corpus->info.notes[0].reason, Reason::kDataNotUtf8);
  EXPECT_THAT(corpus->info.notes[0].text,
              testing::AllOf(HasSubstr("latin.txt"), HasSubstr("100 %"), HasSubstr("iconv")));
}

TEST(LoadCorpus, CountsTheFilesOfZeroBytesOfBothSides) {
  const TempDir dir;
  for (const char* name : {"b.jsonl", "c.jsonl", "d.jsonl"}) Write(dir / name, "");
  Write(dir / "a.jsonl", "{\"text\": \"one\"}\n");
  Write(dir / "val.jsonl", "{\"text\": \"two\"}\n");
  v1::DataSpec spec =
      Spec(v1::DATA_SOURCE_JSONL, {dir / "b.jsonl", dir / "a.jsonl", dir / "c.jsonl"});
  spec.add_val_path((dir / "val.jsonl").string());
  spec.add_val_path((dir / "d.jsonl").string());
  const auto corpus = Load(spec);
  ASSERT_OK(corpus);
  EXPECT_EQ(SummaryOf(corpus->info).empty_files(), 3);
}

TEST(LoadCorpus, AFilterChoosesTheRecordsOfEachSet) {
  const TempDir dir;
  const std::string file = (dir / "a.jsonl").string();
  Write(file,
        "{\"book\": \"p\", \"text\": \"one\"}\n{\"book\": \"q\", \"text\": \"two\"}\n"
        "{\"book\": \"r\", \"text\": \"three\"}\n{\"text\": \"four\"}\n");
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_JSONL, {file});
  (*spec.mutable_val())["books"] = file;
  (*spec.mutable_except())["book"].add_value("r");
  auto& set = *(*spec.mutable_val_where())["books"].mutable_field();
  set["book"].add_value("r");
  const auto corpus = Load(spec);
  ASSERT_OK(corpus);
  EXPECT_THAT(DocumentsOf(*corpus->parts[0].train),
              testing::UnorderedElementsAre("one", "two", "four"));
  EXPECT_THAT(DocumentsOf(*corpus->sets[0].tokens), testing::ElementsAre("three"));
  EXPECT_EQ(corpus->info.dropped_documents, 0);
  EXPECT_EQ(SummaryOf(corpus->info).warnings_size(), 0);

  (*spec.mutable_except())["book"].add_value("x");
  const auto misspelt = Load(spec);
  ASSERT_OK(misspelt);
  const v1::CorpusSummary summary = SummaryOf(misspelt->info);
  ASSERT_EQ(summary.warnings_size(), 1);
  EXPECT_EQ(WarningText(summary.warnings(0)),
            "data.except.book: none of 4 records has the value 'x'; check the spelling: the first "
            "other values are 'p', 'q'");

  // A value of data.where may be only in data.path or in data.val_path.
  v1::DataSpec shared = Spec(v1::DATA_SOURCE_JSONL, {file});
  Write(dir / "val.jsonl", "{\"book\": \"s\", \"text\": \"five\"}\n");
  shared.add_val_path((dir / "val.jsonl").string());
  for (const char* book : {"p", "s"}) (*shared.mutable_where())["book"].add_value(book);
  const auto both = Load(shared);
  ASSERT_OK(both);
  EXPECT_EQ(SummaryOf(both->info).warnings_size(), 0);

  set["book"].set_value(0, "s");
  EXPECT_THAT(Load(spec), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("data.val_where.books.book: none of 4 records has "
                                             "the value 's'")));
}

TEST(LoadCorpus, NamesTheFieldWhoseDocumentsAreThoseOfTraining) {
  const TempDir dir;
  Write(dir / "one.jsonl", "{\"text\": \"one\"}\n");
  const std::string file = (dir / "one.jsonl").string();
  const auto says = [&](const v1::DataSpec& spec, const std::string& fields) {
    EXPECT_THAT(Load(spec),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         EndsWith("all 1 documents are validation documents too; use other files "
                                  "for " +
                                  fields)));
  };
  v1::DataSpec spec = Spec(v1::DATA_SOURCE_JSONL, {file});
  spec.add_val_path(file);
  says(spec, "data.val_path");
  (*spec.mutable_val())["code"] = file;
  says(spec, "data.val_path and data.val");
  spec.clear_val_path();
  says(spec, "data.val");
}

TEST(LoadCorpus, TheFingerprintChangesWithOneByteAndNotWithTheFolder) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "moved");
  Write(dir / "a.txt", "some text");
  Write(dir / "moved/a.txt", "some text");
  const auto here = Load(Spec(v1::DATA_SOURCE_TEXT, {dir / "a.txt"}));
  const auto moved = Load(Spec(v1::DATA_SOURCE_TEXT, {dir / "moved/a.txt"}));
  Write(dir / "a.txt", "some tex!");
  const auto changed = Load(Spec(v1::DATA_SOURCE_TEXT, {dir / "a.txt"}));
  ASSERT_OK(here);
  EXPECT_EQ(here->info.fingerprint.size(), 32u);
  EXPECT_EQ(here->info.fingerprint, moved->info.fingerprint);
  EXPECT_NE(here->info.fingerprint, changed->info.fingerprint);
}

TEST(LoadCorpus, CountsSeparatorsWithinDocuments) {
  const TempDir dir;
  Write(dir / "a.txt", std::string("a\0b\0c", 5));
  const auto corpus = Load(Spec(v1::DATA_SOURCE_TEXT, {dir / "a.txt"}));
  ASSERT_OK(corpus);
  EXPECT_EQ(corpus->info.inner_separators, 2);
}

// 30 KB that would become 400 MB of documents, and of documents without end.
TEST(LoadCorpus, AFileThatExpandsIsRefusedBeforeItFillsTheMemory) {
  const TempDir dir;
  const std::string frame =
      Zstd(absl::StrCat("{\"text\": \"", std::string((1 << 20) - 20, 'x'), "\"}\n"));
  std::string file;
  for (int i = 0; i < 400; ++i) file += frame;
  ASSERT_LT(file.size(), 100'000u);
  Write(dir / "a.jsonl.zst", file);
  EXPECT_THAT(Load(Spec(v1::DATA_SOURCE_JSONL, {dir / "a.jsonl.zst"})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a.jsonl.zst:"), HasSubstr("64 times the files"))));
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 2 << 20) << "in KiB";
}

}  // namespace
}  // namespace nsa::train
