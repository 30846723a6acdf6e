#include "worker/train/data/read/documents.h"

#include <ctime>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(DocumentReader, ReadsPlainGzipAndZstandardJsonLinesAlike) {
  const TempDir dir;
  const std::string lines = ManyLines(2000);
  Write(dir / "a.jsonl", lines);
  Write(dir / "a.jsonl.gz", Gzip(lines));
  Write(dir / "a.jsonl.zst", Zstd(lines));
  const size_t half = lines.find('\n', lines.size() / 2) + 1;
  Write(dir / "two.jsonl.gz", Gzip(lines.substr(0, half)) + Gzip(lines.substr(half)));
  Write(dir / "two.jsonl.zst", Zstd(lines.substr(0, half)) + Zstd(lines.substr(half)));
  // Tapes and some stores pad with zeros, which gzip(1) passes.
  Write(dir / "padded.jsonl.gz", Gzip(lines.substr(0, half)) + std::string(70'000, '\0') +
                                     Gzip(lines.substr(half)) + std::string(1'000, '\0'));
  DocumentOptions options{.source = v1::DATA_SOURCE_JSONL, .files = {dir / "a.jsonl"}};
  const auto plain = ReadAllDocuments(options);
  ASSERT_EQ(plain.size(), 2000u);
  EXPECT_THAT(plain[1], testing::StartsWith("document 1 é é \"q\" bbb"));
  for (const char* name :
       {"a.jsonl.gz", "a.jsonl.zst", "two.jsonl.gz", "two.jsonl.zst", "padded.jsonl.gz"}) {
    options.files = {dir / name};
    EXPECT_EQ(ReadAllDocuments(options), plain) << name;
  }
}

TEST(DocumentReader, TheLastLineNeedsNoNewline) {
  const TempDir dir;
  Write(dir / "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}");
  EXPECT_THAT(ReadAllDocuments({.source = v1::DATA_SOURCE_JSONL, .files = {dir / "a.jsonl"}}),
              testing::ElementsAre("one", "two"));
}

TEST(DocumentReader, LinesThatDoNotPassTheFilterAreSkippedAndKeepTheirNumbers) {
  const TempDir dir;
  Write(dir / "a.jsonl",
        "{\"kind\": \"x\"}\n{\"kind\": \"y\", \"text\": \"one\"}\n"
        "{\"kind\": \"y\", \"text\": null}\n{\"text\": \"two\"}\n");
  Write(dir / "b.jsonl", "{\"text\": \"three\", \"kind\": \"y\"}\n");
  RecordFilter::Fields where;
  where["kind"].add_value("y");
  ReadProgress progress;
  DocumentReader reader({.source = v1::DATA_SOURCE_JSONL,
                         .files = {dir / "a.jsonl", dir / "b.jsonl"},
                         .filter = RecordFilter::Make(where, "data.where", {}, "data.except")},
                        &progress);
  Document document;
  for (const auto& [text, line] :
       std::vector<std::pair<std::string, int64_t>>{{"one", 2}, {"three", 1}}) {
    ASSERT_TRUE(*reader.Next(&document));
    EXPECT_EQ(document.text, text);
    EXPECT_EQ(document.line, line);
  }
  EXPECT_FALSE(*reader.Next(&document));
  EXPECT_EQ(reader.nulls(), 1);
  EXPECT_EQ(reader.tally().records, 5);
  EXPECT_EQ(reader.tally().passed, 3);
}

TEST(DocumentReader, LinesWithoutATextAreCountedAndKeepTheirNumbers) {
  const TempDir dir;
  Write(dir / "a.jsonl", "\x1e{\"text\": \"one\"}\n\x1e\n{\"text\": null}\n{\"text\": \"two\"}\n");
  Write(dir / "b.jsonl", "{\"text\": null}\n{\"text\": \"three\", \"score\": NaN}\n[\n");
  ReadProgress progress;
  DocumentReader reader(
      {.source = v1::DATA_SOURCE_JSONL, .files = {dir / "a.jsonl", dir / "b.jsonl"}}, &progress);
  Document document;
  for (const auto& [text, line] :
       std::vector<std::pair<std::string, int64_t>>{{"one", 1}, {"two", 4}, {"three", 2}}) {
    ASSERT_TRUE(*reader.Next(&document));
    EXPECT_EQ(document.text, text);
    EXPECT_EQ(document.line, line);
    EXPECT_EQ(document.index, line - 1);
  }
  EXPECT_EQ(reader.nulls(), 2);
  EXPECT_THAT(reader.Next(&document),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("b.jsonl:3: a JSON array"), HasSubstr("jq -c '.[]' FILE"))));
}

TEST(DocumentReader, FilesOfZeroBytesArePassedAndCountedInEveryFormat) {
  const TempDir dir;
  Write(dir / "a.jsonl", "{\"text\": \"one\"}\n");
  for (const char* name : {"b.jsonl", "c.jsonl.gz", "d.jsonl.zst", "e.parquet", "f.txt", "g.bin"}) {
    Write(dir / name, "");
  }
  for (const auto& [source, files] : std::map<v1::DataSource, std::vector<std::filesystem::path>>{
           {v1::DATA_SOURCE_JSONL,
            {dir / "b.jsonl", dir / "c.jsonl.gz", dir / "a.jsonl", dir / "d.jsonl.zst"}},
           {v1::DATA_SOURCE_PARQUET, {dir / "e.parquet"}},
           {v1::DATA_SOURCE_TEXT, {dir / "f.txt"}},
           {v1::DATA_SOURCE_TOKENS, {dir / "g.bin"}}}) {
    ReadProgress progress;
    DocumentReader reader({.source = source, .files = files, .separator = 0}, &progress);
    Document document;
    const bool lines = source == v1::DATA_SOURCE_JSONL;
    if (lines) {
      ASSERT_TRUE(*reader.Next(&document));
      EXPECT_EQ(document.text, "one");
    }
    EXPECT_FALSE(*reader.Next(&document));
    EXPECT_EQ(reader.empty_files(), lines ? 3 : 1);
  }
}

// 64 MiB take about 64 KiB as gzip, and 2 KiB as Zstandard: less than one read of the file.
TEST(DocumentReader, ASmallArchiveWithVeryMuchTextDoesNotFillTheMemory) {
  const TempDir dir;
  const std::string text(size_t{64} << 20, 'a');
  for (const auto& [name, archive] :
       std::map<std::string, std::string>{{"a.txt.gz", Gzip(text)}, {"a.txt.zst", Zstd(text)}}) {
    Write(dir / name, archive);
    DocumentOptions options{.files = {dir / name}, .largest_decompressed = size_t{64} << 20};
    EXPECT_EQ(ReadAllDocuments(options), std::vector<std::string>{text});
    options.largest_decompressed -= 1;
    ReadProgress progress;
    Document document;
    EXPECT_THAT(DocumentReader(options, &progress).Next(&document),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(name), HasSubstr("more than 63 MiB"))));
    EXPECT_LT(document.text.capacity(), size_t{192} << 20);
    options.passage_bytes = size_t{16} << 10;  // passages are smaller than the limit
    std::string whole;
    for (const std::string& passage : ReadAllDocuments(options)) whole += passage;
    EXPECT_TRUE(whole == text);
  }
  EXPECT_EQ(DocumentOptions().largest_decompressed, size_t{1} << 30);
}

// All of the archive is in memory when the first document has been read.
TEST(DocumentReader, StopsWithinAnArchiveWhenNobodyWaits) {
  const TempDir dir;
  const std::string lines = "{\"text\": \"one\"}\n" + std::string(size_t{8} << 20, '\n');
  Write(dir / "a.jsonl.gz", Gzip(lines));
  Write(dir / "a.jsonl.zst", Zstd(lines));
  Write(dir / "a.jsonl", lines);
  for (const char* name : {"a.jsonl.gz", "a.jsonl.zst", "a.jsonl"}) {
    ReadProgress progress;
    DocumentReader reader({.source = v1::DATA_SOURCE_JSONL, .files = {dir / name}}, &progress);
    Document document;
    ASSERT_OK(reader.Next(&document));
    progress.cancelled = true;
    EXPECT_THAT(reader.Next(&document), StatusIs(absl::StatusCode::kCancelled, HasSubstr(name)));
  }
}

// CPU seconds that this thread has used.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(DocumentReader, CutsAtBlankLinesWhateverEndsALine) {
  const TempDir dir;
  for (const std::string end : {"\n", "\r\n"}) {
    std::string text;
    for (int paragraph = 0; paragraph < 40; ++paragraph) {
      for (int line = 0; line < 10; ++line) text += "a line of some length" + end;
      text += end;
    }
    Write(dir / "a.txt", text);
    const auto passages = ReadAllDocuments({.files = {dir / "a.txt"}, .passage_bytes = 1024});
    EXPECT_GT(passages.size(), 6u);
    std::string whole;
    for (const std::string& passage : passages) {
      EXPECT_TRUE(passage.ends_with(end + end)) << passage;
      EXPECT_LT(passage.size(), 1600u);
      whole += passage;
    }
    EXPECT_EQ(whole, text);
  }
}

TEST(DocumentReader, RefusesAnotherKindOfFileAsText) {
  const TempDir dir;
  const auto said = [&](const std::string& name, const std::string& content) {
    Write(dir / name, content);
    ReadProgress progress;
    DocumentReader reader({.files = {dir / name}}, &progress);
    Document document;
    return reader.Next(&document).status();
  };
  const auto refuses = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  const std::string page = "<!DOCTYPE html>\n<html><body>Sign in</body></html>\n";
  EXPECT_THAT(said("a.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:4d\n"),
              refuses("git lfs pull"));
  EXPECT_THAT(said("a.txt.gz", Gzip(page)), refuses("a web page"));
  EXPECT_OK(said("a.html", page)) << "somebody wants to train on pages";
  EXPECT_THAT(said("b.txt.zst", Zstd("\xff\xfeS\1o\1m\1e\1")), refuses("UTF-16 text"));
  EXPECT_THAT(said("c.txt", std::string(5000, '\0')), refuses("not text"));
}

// Dividing a text into passages takes linear time, however far away the next blank line is. If each
// passage searched to the end of the file, this would take many times as long.
TEST(DocumentReader, CutsATextWithoutBlankLinesInAsMuchTimeAsOneWithThem) {
  const TempDir dir;
  std::string log;
  while (log.size() < size_t{64} << 20) log += "12:34:56 a line of a log that goes on and on\n";
  const auto seconds = [&](const std::string& name, size_t passages) {
    Write(dir / name, log);
    const double begin = CpuSeconds();
    const auto texts = ReadAllDocuments({.files = {dir / name}, .passage_bytes = size_t{16} << 10});
    const double taken = CpuSeconds() - begin;
    EXPECT_GT(texts.size(), passages);
    std::string whole;
    for (const std::string& text : texts) whole += text;
    EXPECT_TRUE(whole == log);
    return taken;
  };
  const double without = seconds("log.txt", 1000);
  for (size_t end = 4095; end < log.size(); end += 4096) log[end - 1] = log[end] = '\n';
  const double with = seconds("paragraphs.txt", 3000);
  EXPECT_LT(without, 10 * with);
}

// Nor does a passage without a line end search backwards through what was read before it. With
// short passages that took half a minute for each of these megabytes.
TEST(DocumentReader, CutsATextWithoutLineEndsInAsMuchTimeAsOneWithThem) {
  const TempDir dir;
  std::string text(size_t{8} << 20, 'x');
  const auto seconds = [&](const std::string& name) {
    Write(dir / name, text);
    const double begin = CpuSeconds();
    const auto passages = ReadAllDocuments({.files = {dir / name}, .passage_bytes = 64});
    const double taken = CpuSeconds() - begin;
    EXPECT_GE(passages.size(), text.size() / 256);
    return taken;
  };
  const double without = seconds("one_line.txt");
  for (size_t end = 100; end < text.size(); end += 100) text[end] = '\n';
  const double with = seconds("lines.txt");
  EXPECT_LT(without, 10 * with);
}

}  // namespace
}  // namespace nsa::train
