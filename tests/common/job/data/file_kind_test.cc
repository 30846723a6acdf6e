#include "common/job/data/file_kind.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nsa {
namespace {

using std::string_literals::operator""s;
using ::testing::HasSubstr;

FileKindInfo Kind(const std::string& head) {
  return RecogniseFile(head, static_cast<int64_t>(head.size()));
}

std::string Repeat(const std::string& text, size_t bytes) {
  std::string all;
  while (all.size() < bytes) all += text;
  return all;
}

// Every second byte 0.
std::string Utf16(const std::string& text) {
  std::string wide;
  for (const char c : text) wide += std::string{c, '\0'};
  return wide;
}

TEST(FileKind, NamesWhatStandsInThePlaceOfAFile) {
  const FileKindInfo pointer = Kind(
      "version https://git-lfs.github.com/spec/v1\noid "
      "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f\n"
      "size 12345\n");
  EXPECT_EQ(pointer.kind, FileKind::kPointer);
  EXPECT_THAT(std::string(pointer.remedy), HasSubstr("git lfs pull"));
  for (const char* page : {"<!DOCTYPE html>\n<html lang=\"en\">", "\n\n  <!doctype HTML><head>",
                           "<HTML><body>Sign in</body></HTML>", "\xEF\xBB\xBF<html>"}) {
    EXPECT_EQ(Kind(page + Repeat(" more of the page", 100)).kind, FileKind::kWebPage) << page;
  }
  for (const char* text : {"<p>a fragment", "A text about <html> and <!doctype html> in it",
                           "version https of a text"}) {
    EXPECT_EQ(Kind(text + Repeat(" more of the text", 100)).kind, FileKind::kText) << text;
  }
  const std::string page = "<html><body>Sign in</body></html>";
  for (const char* wanted : {"/data/page.HTML", "https://example.org/a.html?x=1"}) {
    EXPECT_FALSE(FindStranger(wanted, page).has_value()) << wanted;
    EXPECT_TRUE(FindStranger(wanted, "version https://git-lfs.github.com/spec/v1\n").has_value());
  }
  EXPECT_TRUE(FindStranger("https://example.org/blob/main/train.txt", page).has_value());
}

TEST(FileKind, RecognisesImagesAndArchives) {
  EXPECT_EQ(Kind("\x89PNG\r\n\x1a\n\0\0\0\rIHDR"s).name, "a PNG image");
  EXPECT_EQ(Kind("\x28\xb5\x2f\xfd\x04\x00"s).kind, FileKind::kZstd);
  EXPECT_EQ(Kind(Repeat("Plain text, long enough. ", 100)).kind, FileKind::kText);
}

TEST(FaultOfText, NamesOtherEncodings) {
  const std::string text = Repeat("Some text. ", 1000);  // 1,001 bytes
  EXPECT_FALSE(FaultOfText(text).has_value());
  EXPECT_FALSE(FaultOfText("").has_value());
  EXPECT_FALSE(FaultOfText(text + '\0').has_value()) << "one in a thousand";
  EXPECT_EQ(FaultOfText("\xff\xfe" + Utf16(text))->what, "UTF-16 text");
  EXPECT_EQ(FaultOfText("\xfe\xff\0S\0o"s)->what, "UTF-16 text");
  EXPECT_EQ(FaultOfText("\xff\xfe\0\0S\0\0\0"s)->what, "UTF-32 text");
  const auto unmarked = FaultOfText(Utf16(text));
  ASSERT_TRUE(unmarked.has_value());
  EXPECT_THAT(unmarked->what, HasSubstr("1001 of its first 2002 bytes are 0"));
  EXPECT_THAT(unmarked->remedy, HasSubstr("iconv -f UTF-16"));
  const auto padded = FaultOfText(text + std::string(200, '\0'));
  ASSERT_TRUE(padded.has_value());
  EXPECT_THAT(padded->remedy, HasSubstr("UTF-8 text"));
}

TEST(ShareNotUtf8, SeparatesLatin1FromDamage) {
  EXPECT_EQ(ShareNotUtf8(""), 0);
  EXPECT_EQ(ShareNotUtf8("only ASCII"), 0);
  const std::string utf8 = Repeat("M\xC3\xBChle \xE6\x97\xA5\xE6\x9C\xAC ", 1000);
  EXPECT_EQ(ShareNotUtf8(utf8), 0);
  for (size_t begin = 0; begin < 6; ++begin) {
    EXPECT_EQ(ShareNotUtf8(std::string_view(utf8).substr(begin, 500 + begin)), 0)
        << "the sample begins or ends within a character";
  }
  EXPECT_GT(ShareNotUtf8(Repeat("caf\xE9 und M\xFChle ", 1000)), 0.9);
  EXPECT_LT(ShareNotUtf8(utf8 + "\xE9 " + utf8), 0.01);
}

TEST(FileKind, BinaryFilesSayWhichSourceReadsThem) {
  const std::string parquet = "PAR1" + std::string(100, '\x7') + "PAR1";
  EXPECT_EQ(Kind(parquet).source, v1::DATA_SOURCE_PARQUET);
  EXPECT_EQ(Kind("\x93NUMPY\x01\x00" + std::string(100, '\x7')).source, v1::DATA_SOURCE_TOKENS);
  EXPECT_EQ(Kind("\x28\xb5\x2f\xfd\x04\x00"s).source, v1::DATA_SOURCE_UNSPECIFIED);
  EXPECT_EQ(Kind(Repeat("Plain text, long enough. ", 100)).source, v1::DATA_SOURCE_UNSPECIFIED);
  EXPECT_EQ(FaultOfMark(v1::DATA_SOURCE_PARQUET, parquet, parquet), std::nullopt);
  EXPECT_EQ(FaultOfMark(v1::DATA_SOURCE_PARQUET, parquet), std::nullopt);
  EXPECT_NE(FaultOfMark(v1::DATA_SOURCE_PARQUET, parquet, "PAR1 and more"), std::nullopt);
  EXPECT_NE(FaultOfMark(v1::DATA_SOURCE_PARQUET, "PAR"), std::nullopt);
  EXPECT_EQ(FaultOfMark(v1::DATA_SOURCE_JSONL, "{}"), std::nullopt) << "text has no mark";
  EXPECT_EQ(FaultOfMark(v1::DATA_SOURCE_TOKENS, "\x01\x02"), std::nullopt) << "some have none";
}

}  // namespace
}  // namespace nsa
