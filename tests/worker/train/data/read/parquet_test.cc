#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"
#include "tests/worker/train/data/read/parquet_writer.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/read/parquet/codec.h"
#include "worker/train/data/read/parquet/column_reader.h"
#include "worker/train/data/read/parquet/delta.h"
#include "worker/train/data/read/parquet/hybrid.h"

namespace nsa::train {
namespace {

using parquet::ColumnReader;
using testing::AllOf;
using testing::HasSubstr;

const Rows& SomeRows() {
  static const Rows rows = {"one", std::nullopt, "",           "two é", std::string(300, 'x'),
                            "one", std::nullopt, std::nullopt, "three"};
  return rows;
}

std::vector<std::string> TextsOf(const Rows& rows) {
  std::vector<std::string> texts;
  for (const auto& row : rows) {
    if (row) texts.push_back(*row);
  }
  return texts;
}

// Reads a whole column. What it read before an error is in `texts`.
absl::Status ReadColumn(const std::filesystem::path& path, const std::string& column,
                        std::vector<std::string>* texts, int64_t* nulls = nullptr) {
  ReadProgress progress;
  auto reader = ColumnReader::Open(path, column, &progress);
  if (!reader.ok()) return reader.status();
  std::string_view text;
  while (true) {
    const absl::StatusOr<bool> found = (*reader)->Next(&text);
    if (!found.ok()) return found.status();
    if (nulls != nullptr) *nulls = (*reader)->nulls();
    if (!*found) return absl::OkStatus();
    texts->emplace_back(text);
  }
}

std::vector<ParquetOptions> AllKinds() {
  std::vector<ParquetOptions> kinds;
  for (const bool dictionary : {false, true}) {
    for (const bool v2 : {false, true}) {
      for (const int codec : {0, 1, 2, 4, 6, 7}) {
        kinds.push_back({.dictionary = dictionary, .v2 = v2, .codec = codec});
      }
    }
  }
  return kinds;
}

TEST(Parquet, ReadsEveryCodecPageVersionAndDictionary) {
  const TempDir dir;
  for (ParquetOptions kind : AllKinds()) {
    SCOPED_TRACE(absl::StrCat("dictionary ", kind.dictionary, " v2 ", kind.v2, " ", kind.codec));
    std::vector<std::string> texts;
    int64_t nulls = 0;
    Write(dir / "a.parquet", ParquetText(SomeRows(), kind).Write());
    EXPECT_OK(ReadColumn(dir / "a.parquet", "text", &texts, &nulls));
    EXPECT_EQ(texts, TextsOf(SomeRows()));
    EXPECT_EQ(nulls, 3);

    kind.optional = false;
    const Rows all = {"a", "b", "", "a"};
    Write(dir / "b.parquet", ParquetText(all, kind).Write());
    texts.clear();
    EXPECT_OK(ReadColumn(dir / "b.parquet", "text", &texts));
    EXPECT_EQ(texts, TextsOf(all));
  }
}

TEST(Parquet, RowsBecomeDocumentsAndNullsAreCounted) {
  const TempDir dir;
  Write(dir / "a.parquet", ParquetText(SomeRows(), {.column = "body"}).Write());
  ReadProgress progress;
  DocumentReader reader({.source = v1::DATA_SOURCE_PARQUET,
                         .files = {dir / "a.parquet", dir / "a.parquet"},
                         .text_field = "body"},
                        &progress);
  Document document;
  std::vector<std::string> places;
  while (*reader.Next(&document)) {
    places.push_back(document.place.substr(document.place.rfind('/') + 1));
  }
  EXPECT_EQ(reader.nulls(), 6);
  ASSERT_EQ(places.size(), 10u);  // empty texts are no documents
  EXPECT_EQ(places[0], "a.parquet: row 1");
  EXPECT_EQ(places[1], "a.parquet: row 4");
  EXPECT_EQ(places[4], "a.parquet: row 9");
}

// A file with the columns doc.text and doc.kind, of seven rows in three row groups.
std::string ParquetOfKinds() {
  const auto rows = [](const std::vector<std::string>& values) {
    NestedRows all;
    for (const std::string& value : values) all.push_back({{0, value.empty() ? 1 : 2, value}});
    return all;
  };
  const ParquetOptions options = {
      .path = {{"doc", 1}, {"text", 1}}, .twin = "kind", .page_rows = 2, .group_pages = 1};
  return ParquetText(rows({"a", "b", "", "d", "e", "f", "g"}), options)
      .Twin(rows({"x", "y", "x", "", "y", "x", "x"}))
      .Write();
}

TEST(Parquet, RowsThatDoNotPassTheFilterAreSkippedAndKeepTheirNumbers) {
  const TempDir dir;
  Write(dir / "a.parquet", ParquetOfKinds());
  RecordFilter::Fields kinds;
  kinds["doc.kind"].add_value("x");
  const auto read = [&](std::shared_ptr<const RecordFilter> filter, int64_t skip_to) {
    ReadProgress progress;
    DocumentReader reader({.source = v1::DATA_SOURCE_PARQUET,
                           .files = {dir / "a.parquet"},
                           .text_field = "doc.text",
                           .filter = std::move(filter)},
                          &progress);
    reader.SkipTo(skip_to);
    std::string texts;
    Document document;
    while (*reader.Next(&document)) absl::StrAppend(&texts, document.text, document.line, " ");
    return texts;
  };
  const auto where = RecordFilter::Make(kinds, "data.where", {}, "data.except");
  const auto except = RecordFilter::Make({}, "data.where", kinds, "data.except");
  EXPECT_EQ(read(where, 0), "a1 f6 g7 ");
  EXPECT_EQ(read(except, 0), "b2 d4 e5 ") << "a null is no value";
  EXPECT_EQ(read(where, 5), "f6 g7 ");
  EXPECT_EQ(read(except, 4), "e5 ");
}

TEST(Parquet, AFilterIsRefusedWithTheColumnsThatThereAre) {
  const TempDir dir;
  Write(dir / "a.parquet", ParquetOfKinds());
  RecordFilter::Fields kinds;
  kinds["kind"].add_value("x");
  ReadProgress progress;
  DocumentReader reader({.source = v1::DATA_SOURCE_PARQUET,
                         .files = {dir / "a.parquet"},
                         .text_field = "doc.text",
                         .filter = RecordFilter::Make(kinds, "data.where", {}, "data.except")},
                        &progress);
  Document document;
  EXPECT_THAT(reader.Next(&document),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("no column 'kind' (doc.text, doc.kind)"),
                             HasSubstr("set data.where.kind"))));
}

TEST(Parquet, AColumnThatIsNotThereIsRefusedWithThoseThatAre) {
  const TempDir dir;
  Write(dir / "a.parquet", ParquetText(SomeRows(), {.column = "body"}).Write());
  std::vector<std::string> texts;
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "text", &texts),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a.parquet"), HasSubstr("no column 'text' (body)"),
                             HasSubstr("set data.text_field"))));
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "id", &texts),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("column 'id' is not of type BYTE_ARRAY")));
}

TEST(Parquet, WhatIsNoParquetFileIsRefused) {
  const TempDir dir;
  std::vector<std::string> texts;
  Write(dir / "a.parquet", "{\"text\": \"a line of JSON\"}\n");
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "text", &texts),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not begin with PAR1")));
  Write(dir / "a.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "text", &texts),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("git lfs pull")));
  Write(dir / "a.parquet", "PAR1");
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "text", &texts),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is no Parquet file")));
  Write(dir / "a.parquet", "PAR1" + std::string(100, 'x') + U32(1 << 30) + "PAR1");
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "text", &texts),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a footer of 1073741824 bytes")));
  Write(dir / "a.parquet", "PAR1" + std::string(100, 'x') + U32(10) + "PARE");
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "text", &texts),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is encrypted")));
}

TEST(Parquet, AnUnknownCodecIsRefusedByName) {
  const TempDir dir;
  Write(dir / "a.parquet", ParquetText(SomeRows(), {.codec = 5}).Write());
  std::vector<std::string> texts;
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "text", &texts),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("compressed with lz4 ("), HasSubstr("zstd or lz4_raw"))));
}

// A file that is emptied and written again is written to the disk at once, which takes long.
void Replace(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);
  Write(path, bytes);
}

// A damaged file must be refused, or give texts of the usual size; never crash, hang or take much
// memory. With checksums every damage within a page is found.
void ExpectHarmless(const std::filesystem::path& path, const std::string& bytes,
                    const std::string& what, const std::string& column = "text") {
  Replace(path, bytes);
  std::vector<std::string> texts;
  const absl::Status status = ReadColumn(path, column, &texts);
  if (!status.ok()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(path.filename().string())) << what;
  }
  EXPECT_LE(texts.size(), 1000u) << what;
  for (const std::string& text : texts) EXPECT_LE(text.size(), 10'000u) << what;
}

// Rows of texts.list.element: ["a", "b"], null, [], [null, "", "c"], ["two é"], [null, null].
ParquetOptions ListOptions() {
  return {.path = {{"texts", 1}, {"list", 2}, {"element", 1}}, .page_rows = 2, .group_pages = 2};
}
NestedRows SomeLists() {
  return {{{0, 3, "a"}, {1, 3, "b"}},
          {{0, 0, ""}},
          {{0, 1, ""}},
          {{0, 2, ""}, {1, 3, ""}, {1, 3, "c"}},
          {{0, 3, "two é"}},
          {{0, 2, ""}, {1, 2, ""}}};
}

// Pages end within rows, and a row group after four of them.
TEST(Parquet, ARowOfAListIsOneText) {
  const TempDir dir;
  for (const bool v2 : {false, true}) {
    for (const bool dictionary : {false, true}) {
      ParquetOptions options = ListOptions();
      options.v2 = v2;
      options.dictionary = dictionary;
      Write(dir / "a.parquet", ParquetText(SomeLists(), options).Write());
      for (const char* column : {"texts", "texts.list", "texts.list.element"}) {
        SCOPED_TRACE(absl::StrCat(column, v2 ? " v2" : " v1", dictionary ? " dictionary" : ""));
        std::vector<std::string> texts;
        int64_t nulls = 0;
        EXPECT_OK(ReadColumn(dir / "a.parquet", column, &texts, &nulls));
        EXPECT_EQ(texts, (std::vector<std::string>{"a\nb", "\nc", "two é"}));
        EXPECT_EQ(nulls, 3);
      }
      ReadProgress progress;
      DocumentReader reader(
          {.source = v1::DATA_SOURCE_PARQUET, .files = {dir / "a.parquet"}, .text_field = "texts"},
          &progress);
      reader.SkipTo(4);
      Document document;
      ASSERT_TRUE(*reader.Next(&document));
      EXPECT_EQ(document.text, "two é");
      EXPECT_EQ(document.line, 5);
      EXPECT_FALSE(*reader.Next(&document));
    }
  }
}

TEST(Parquet, RowsOfAListThatDoNotFitTheRowGroupAreRefused) {
  const TempDir dir;
  const auto said = [&](const NestedRows& rows) {
    Write(dir / "a.parquet", ParquetText(rows, ListOptions()).Write());
    std::vector<std::string> texts;
    return ReadColumn(dir / "a.parquet", "texts", &texts);
  };
  const auto refuses = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  EXPECT_THAT(said({{{1, 3, "a"}}}), refuses("a row that does not begin"));
  EXPECT_THAT(said({{{0, 3, "a"}, {0, 3, "b"}}}), refuses("more rows than the row group has"));
  EXPECT_THAT(said({{{0, 3, "a"}}, {{1, 3, "b"}}}), refuses("1 rows are missing"));
  EXPECT_THAT(said({{{0, 4, "a"}}}), refuses("a definition level above 3"));
  EXPECT_THAT(said({{{2, 3, "a"}}}), refuses("a repetition level above 1"));
}

TEST(Parquet, AColumnWithinAStructureHasTheNamesOnTheWay) {
  const TempDir dir;
  const NestedRows rows = {{{0, 2, "a"}}, {{0, 0, ""}}, {{0, 1, ""}}, {{0, 2, "b"}}};
  for (const bool v2 : {false, true}) {
    Write(dir / "a.parquet",
          ParquetText(rows, {.path = {{"doc", 1}, {"text", 1}}, .v2 = v2}).Write());
    std::vector<std::string> texts;
    int64_t nulls = 0;
    EXPECT_OK(ReadColumn(dir / "a.parquet", "doc.text", &texts, &nulls));
    EXPECT_EQ(texts, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(nulls, 2);
    EXPECT_THAT(
        ReadColumn(dir / "a.parquet", "text", &texts),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no column 'text' (doc.text)")));
  }
  Write(dir / "a.parquet",
        ParquetText(rows, {.path = {{"doc", 0}, {"texts", 2}, {"list", 2}}}).Write());
  std::vector<std::string> texts;
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "doc.texts.list", &texts),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a list within a list")));
}

TEST(Parquet, ARowGroupWithoutRowsIsPassed) {
  const TempDir dir;
  for (const Rows& rows : {SomeRows(), Rows{}}) {
    Write(dir / "a.parquet", ParquetText(rows, {.empty_group = true}).Write());
    std::vector<std::string> texts;
    EXPECT_OK(ReadColumn(dir / "a.parquet", "text", &texts));
    EXPECT_EQ(texts, TextsOf(rows));
  }
}

TEST(Parquet, AFileThatEndsAnywhereIsRefused) {
  const TempDir dir;
  for (const ParquetOptions& kind : AllKinds()) {
    const std::string whole = ParquetText(SomeRows(), kind).Write();
    for (size_t size = 0; size < whole.size(); ++size) {
      Replace(dir / "cut.parquet", whole.substr(0, size));
      std::vector<std::string> texts;
      const absl::Status status = ReadColumn(dir / "cut.parquet", "text", &texts);
      EXPECT_FALSE(status.ok()) << size;
      EXPECT_THAT(std::string(status.message()), HasSubstr("cut.parquet"));
    }
  }
}

TEST(Parquet, AFlippedByteAnywhereIsHarmless) {
  const TempDir dir;
  for (ParquetOptions kind : AllKinds()) {
    for (const bool crc : {false, true}) {
      kind.crc = crc;
      const std::string whole = ParquetText(SomeRows(), kind).Write();
      for (size_t at = 0; at < whole.size(); ++at) {
        for (const int flip : {0x01, 0xc0}) {
          std::string bytes = whole;
          bytes[at] = static_cast<char>(bytes[at] ^ flip);
          ExpectHarmless(dir / "flipped.parquet", bytes, absl::StrCat(at, " ^ ", flip));
        }
      }
    }
  }
}

TEST(Parquet, AFlippedByteAnywhereInAFileOfListsIsHarmless) {
  const TempDir dir;
  for (const bool v2 : {false, true}) {
    for (const bool crc : {false, true}) {
      ParquetOptions options = ListOptions();
      options.v2 = v2;
      options.crc = crc;
      const std::string whole = ParquetText(SomeLists(), options).Write();
      for (size_t at = 0; at < whole.size(); ++at) {
        for (const int flip : {0x01, 0xc0}) {
          std::string bytes = whole;
          bytes[at] = static_cast<char>(bytes[at] ^ flip);
          ExpectHarmless(dir / "flipped.parquet", bytes, absl::StrCat(at, " ^ ", flip), "texts");
        }
      }
    }
  }
}

TEST(Parquet, ADamagedPageIsNamedByFileByteAndColumn) {
  const TempDir dir;
  std::string bytes = ParquetText(SomeRows(), {}).Write();
  bytes[bytes.find("one")] = 'X';
  Write(dir / "a.parquet", bytes);
  std::vector<std::string> texts;
  EXPECT_THAT(ReadColumn(dir / "a.parquet", "text", &texts),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("a.parquet: byte 4: page of column 'text'"),
                             HasSubstr("a checksum of"), HasSubstr("copy it again"))));
}

// A page that claims a GiB and has nothing.
TEST(Parquet, APageThatClaimsToBeLargeTakesNoMemory) {
  const TempDir dir;
  for (const int codec : {0, 1, 2, 4, 6, 7}) {
    ThriftText data, header, meta, chunk, other, group, root, column, id, footer;
    data.I32(1, 1).I32(2, 0).I32(3, 3).I32(4, 3);
    const std::string body = "abc";
    header.I32(1, 0).I32(2, 1 << 30).I32(3, std::ssize(body)).Struct(5, data);
    const std::string page = header.bytes() + body;
    meta.I32(1, 6).I32(4, codec).I64(5, 1).I64(7, std::ssize(page)).I64(9, 4);
    chunk.I64(2, 4).Struct(3, meta);
    group.Structs(1, {chunk}).I64(2, 0).I64(3, 1);
    root.Text(4, "schema").I32(5, 1);
    column.I32(1, 6).I32(3, 0).Text(4, "text");
    footer.I32(1, 1).Structs(2, {root, column}).I64(3, 1).Structs(4, {group});
    const std::string end = footer.bytes();
    Write(dir / "a.parquet", "PAR1" + page + end + U32(static_cast<uint32_t>(end.size())) + "PAR1");
    std::vector<std::string> texts;
    // Brotli and zstd can make a GiB of three bytes, so that page is too large. The others cannot.
    const bool possible = codec == 4 || codec == 6;
    EXPECT_THAT(
        ReadColumn(dir / "a.parquet", "text", &texts),
        StatusIs(possible ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kDataLoss,
                 HasSubstr("byte 4")))
        << codec;
  }
}

TEST(Parquet, SnappyCopiesAndRefusesWhatLiesOutside) {
  const auto decompress = [](const std::string& from, size_t size) -> absl::StatusOr<std::string> {
    parquet::PageBytes to;
    const absl::Status status = parquet::Decompress(parquet::kSnappy, from, size, &to);
    return status.ok() ? absl::StatusOr<std::string>(to.view()) : status;
  };
  using std::string_literals::operator""s;
  // "ab", then a copy of eight bytes from two back, which repeats itself.
  EXPECT_EQ(decompress("\x0a\x04"s + "ab" + "\x11\x02"s, 10).value(), "ababababab");
  EXPECT_EQ(decompress("\x08\x0c"s + "abcd" + "\x0e\x04\x00"s, 8).value(), "abcdabcd");
  EXPECT_EQ(decompress("\x08\x0c"s + "abcd" + "\x0f\x04\x00\x00\x00"s, 8).value(), "abcdabcd");
  EXPECT_EQ(decompress("\x00"s, 0).value(), "");
  for (const std::string& bad :
       {"\x0a\x04"s + "ab" + "\x11\x03"s, "\x0a\x04"s + "ab" + "\x11\x00"s, "\x0a\x04"s + "ab",
        "\x0a\x04"s + "a", "\x0b\x04"s + "ab" + "\x11\x02"s, "\x0a\xfc\xff\xff\xff\xff"s, ""s,
        "\xff\xff\xff\xff\xff\xff"s}) {
    EXPECT_THAT(decompress(bad, 10), StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST(Parquet, DeltaNumbersGoOnOverMiniblocksAndBlocks) {
  // 128 numbers a block, 4 miniblocks, 3 numbers: 7, 5, 10. Differences -2, 5; the smallest is -2,
  // the rest are 0 and 7 in three bits.
  std::string bytes = {'\x80', '\x01', 4, 3, 14, 3, 3, 0, 0, 0};
  bytes += '\x38';  // 000 then 111
  bytes += std::string(11, '\0');
  bytes += "behind";
  auto numbers = parquet::DeltaIntegers::Open(bytes);
  ASSERT_OK(numbers);
  EXPECT_EQ(numbers->count(), 3);
  EXPECT_EQ(bytes.substr(*numbers->End()), "behind");
  EXPECT_EQ(*numbers->Next(), 7);
  EXPECT_EQ(*numbers->Next(), 5);
  EXPECT_EQ(*numbers->Next(), 10);
  EXPECT_THAT(numbers->Next(), StatusIs(absl::StatusCode::kDataLoss, testing::_));
}

TEST(Parquet, ARunOfTwoBillionNullsIsPassedAtOnce) {
  parquet::HybridReader levels(std::string_view("\xfe\xff\xff\xff\x0f\x00", 6), 1);
  const auto run = levels.Peek();
  ASSERT_OK(run);
  EXPECT_EQ(run->value, 0u);
  EXPECT_EQ(run->count, 0x7fffffff);
  levels.Advance(run->count);
  EXPECT_THAT(levels.Peek(), StatusIs(absl::StatusCode::kDataLoss, testing::_));
}

TEST(Parquet, APageThatWouldBecomeManyTimesItsBytesIsRefusedBeforeMemoryIsTaken) {
  parquet::PageBytes page;
  const std::string bytes(1'000, 'x');
  constexpr int64_t kZstd = 6;
  EXPECT_THAT(parquet::Decompress(kZstd, bytes, size_t{300} << 20, &page),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 64 times")));
  EXPECT_TRUE(page.view().empty());
}

}  // namespace
}  // namespace nsa::train
