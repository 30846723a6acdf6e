// A stream of every kind of file gives the same rows, also after a stop within a file.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/worker/train/data/read/parquet_writer.h"
#include "tests/worker/train/data/stream/stream_jobs.h"

namespace nsa::train {
namespace {

constexpr int32_t kWindow = 7;

// The rows of a job, each part of them read by another loader.
void ExpectRows(const LoaderOptions& options, const Texts& texts, const std::string& what) {
  const std::vector<TokenRow> expected = PlainRows(texts, kWindow, 200);
  EXPECT_EQ(Take(options, 50), expected) << what;
  v1::DataCursor cursor = OpenRanks(options, 1)[0]->cursor();
  std::vector<TokenRow> rows;
  while (rows.size() < 200) {
    const Loaders loader = OpenRanks(options, 1, &cursor);
    for (TokenRow& row : Take(loader, 5)) rows.push_back(std::move(row));
    cursor = loader[0]->cursor();
  }
  EXPECT_EQ(rows, expected) << what << ", resumed";
}

// Replaces the files of the job.
void Replace(LoaderOptions* options, v1::DataSource source, const std::vector<std::string>& paths) {
  v1::DataSpec* const data = options->spec.mutable_data();
  data->set_source(source);
  data->clear_path();
  for (const std::string& path : paths) data->add_path(path);
}

TEST(StreamFormats, ParquetAndArchivesHaveTheRowsOfJsonLines) {
  const TempDir dir;
  const Texts texts = SomeTexts(3, 25);
  LoaderOptions options = StreamOn(dir, texts, kWindow);
  ExpectRows(options, texts, "jsonl");
  std::vector<std::string> parquet, gzip, zstd;
  for (size_t file = 0; file < texts.size(); ++file) {
    Rows rows = {std::nullopt, ""};
    for (const std::string& text : texts[file]) {
      rows.push_back(text);
      if (rows.size() % 5 == 0) rows.push_back(std::nullopt);
      if (rows.size() % 7 == 0) rows.push_back("");
    }
    parquet.push_back(dir / absl::StrCat(file, ".parquet"));
    Write(parquet.back(), ParquetText(rows, {.dictionary = file == 1, .codec = 6}).Write());
    gzip.push_back(dir / absl::StrCat(file, ".jsonl.gz"));
    Write(gzip.back(), Gzip("\n" + LinesOf(texts[file]) + "\n\n"));
    zstd.push_back(dir / absl::StrCat(file, ".jsonl.zst"));
    Write(zstd.back(), Zstd(LinesOf(texts[file])));
  }
  Replace(&options, v1::DATA_SOURCE_PARQUET, parquet);
  ExpectRows(options, texts, "parquet");
  Replace(&options, v1::DATA_SOURCE_JSONL, gzip);
  ExpectRows(options, texts, "gzip");
  Replace(&options, v1::DATA_SOURCE_JSONL, zstd);
  ExpectRows(options, texts, "zstd");
}

TEST(StreamFormats, TokenFilesHaveTheRowsOfTheirTexts) {
  const TempDir dir;
  const Texts texts = SomeTexts(3, 25);
  LoaderOptions options = StreamOn(dir, {}, kWindow);
  options.spec.mutable_data()->clear_tokenizer();
  options.spec.mutable_data()->set_separator("0");
  std::vector<std::string> paths;
  for (size_t file = 0; file < texts.size(); ++file) {
    std::string bytes;
    for (const std::string& text : texts[file]) {
      bytes += std::string(2, '\0');
      for (const char c : text) bytes += {c, '\0'};
    }
    paths.push_back(dir / absl::StrCat(file, ".bin"));
    Write(paths.back(), bytes);
  }
  Replace(&options, v1::DATA_SOURCE_TOKENS, paths);
  ExpectRows(options, texts, "tokens");
}

// A text is divided into passages, so that no more of it is held.
TEST(StreamFormats, ATextIsReadInPassages) {
  const TempDir dir;
  Texts texts(2);
  std::vector<std::string> paths;
  for (size_t file = 0; file < texts.size(); ++file) {
    std::string whole;
    for (int i = 0; i < 5; ++i) {
      std::string passage;
      for (int k = 0; passage.size() <= (16 << 10); ++k) {
        absl::StrAppend(&passage, file, " ", i, " ", k, "\n");
      }
      texts[file].push_back(passage + "\n");
      whole += texts[file].back();
    }
    paths.push_back(dir / absl::StrCat(file, ".txt"));
    Write(paths.back(), whole);
  }
  LoaderOptions options = StreamOn(dir, {}, kWindow);
  Replace(&options, v1::DATA_SOURCE_TEXT, paths);
  ExpectRows(options, texts, "text");
}

TEST(StreamFormats, SkippingGoesToADocumentOfEachFormat) {
  const TempDir dir;
  const auto expect = [](DocumentOptions options, const std::string& what) {
    std::vector<Document> all;
    ReadProgress progress;
    DocumentReader reader(options, &progress);
    for (Document document;;) {
      const auto found = reader.Next(&document);
      ASSERT_OK(found);
      if (!*found) break;
      all.push_back(document);
    }
    ASSERT_GT(all.size(), 5u) << what;
    for (int64_t index = 0; index <= all.back().index + 2; ++index) {
      DocumentReader again(options, &progress);
      again.SkipTo(index);
      for (const Document& expected : all) {
        if (expected.index < index) continue;
        Document document;
        const auto found = again.Next(&document);
        ASSERT_OK(found);
        ASSERT_TRUE(*found) << what << " " << index;
        ASSERT_EQ(document.text, expected.text) << what << " " << index;
        ASSERT_EQ(document.tokens, expected.tokens) << what << " " << index;
        ASSERT_EQ(document.index, expected.index) << what << " " << index;
        ASSERT_EQ(document.place, expected.place) << what << " " << index;
      }
      Document document;
      const auto found = again.Next(&document);
      ASSERT_OK(found);
      EXPECT_FALSE(*found) << what << " " << index;
    }
  };
  Rows rows;
  for (int i = 0; i < 40; ++i)
    rows.push_back(i % 4 == 1 ? std::nullopt : std::optional(absl::StrCat(i)));
  Write(dir / "a.parquet", ParquetText(rows, {}).Write());
  expect({.source = v1::DATA_SOURCE_PARQUET, .files = {dir / "a.parquet"}}, "parquet");
  Write(dir / "a.jsonl", ManyLines(30));
  expect({.source = v1::DATA_SOURCE_JSONL, .files = {dir / "a.jsonl"}}, "jsonl");
  std::string text;
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&text, i, i % 9 == 0 ? "\n\n" : " ");
  Write(dir / "a.txt", text);
  expect({.source = v1::DATA_SOURCE_TEXT, .files = {dir / "a.txt"}, .passage_bytes = 100}, "text");
  std::string bytes;
  for (int i = 0; i < 900; ++i) bytes += {static_cast<char>(i % 41), '\0'};
  Write(dir / "a.bin", bytes);
  expect({.source = v1::DATA_SOURCE_TOKENS, .files = {dir / "a.bin"}, .separator = 0}, "tokens");
  expect({.source = v1::DATA_SOURCE_TOKENS,
          .files = {dir / "a.bin"},
          .separator = kNoSeparator,
          .passage_bytes = 100},
         "tokens in passages");
  std::string index("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", 18);  // of uint16
  const auto add = [&](uint64_t value, int width) {
    for (int i = 0; i < width; ++i) index += static_cast<char>(value >> (8 * i) & 0xff);
  };
  add(90, 8);
  add(91, 8);
  for (int i = 0; i < 90; ++i) add(10, 4);
  for (int i = 0; i < 90; ++i) add(static_cast<uint64_t>(i) * 20, 8);
  for (uint64_t i = 0; i <= 90; ++i) add(i, 8);
  Write(dir / "a.idx", index);
  expect({.source = v1::DATA_SOURCE_TOKENS, .files = {dir / "a.bin"}}, "Megatron");
}

}  // namespace
}  // namespace nsa::train
