#include "worker/train/data/read/documents.h"

#include <ctime>
#include <map>
#include <string>
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
  DocumentOptions options{.source = v1::DATA_SOURCE_JSONL, .files = {dir / "a.jsonl"}};
  const auto plain = ReadAllDocuments(options);
  ASSERT_EQ(plain.size(), 2000u);
  EXPECT_THAT(plain[1], testing::StartsWith("document 1 é é \"q\" bbb"));
  for (const char* name : {"a.jsonl.gz", "a.jsonl.zst", "two.jsonl.gz", "two.jsonl.zst"}) {
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
                         AllOf(HasSubstr(name),
                               HasSubstr("decompresses to a document of more than 63 MiB"))));
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
