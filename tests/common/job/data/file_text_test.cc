#include "common/job/data/file_text.h"

#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <fstream>
#include <string>

#include "common/job/data/parquet/schema.h"
#include "gtest/gtest.h"
#include "tests/testing/parquet_footer.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

class FileTextTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& content) {
    std::ofstream(folder_ / "file", std::ios::binary) << content;
    return folder_ / "file";
  }
  std::string Gzip(const std::string& text) {
    const std::string path = folder_ / "packed";
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string Zstd(const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
    return out;
  }
  static std::string Text(size_t bytes) {
    std::string text;
    for (int number = 0; text.size() < bytes; ++number) text += std::to_string(number * 7919) + " ";
    return text.substr(0, bytes);
  }
  const TempDir folder_;
};

TEST_F(FileTextTest, TheHeadOfAnArchiveIsThatOfItsText) {
  const std::string text = Text(1'000'000);
  for (const std::string& packed : {Gzip(text), Zstd(text)}) {
    EXPECT_EQ(UnpackedHead(Write(packed), 300'000), text.substr(0, 300'000));
    EXPECT_EQ(UnpackedHead(Write(packed), 2'000'000), text) << "all of it";
    const std::string cut = UnpackedHead(Write(packed.substr(0, packed.size() / 2)), 2'000'000);
    EXPECT_GT(cut.size(), 0u);
    EXPECT_EQ(cut, text.substr(0, cut.size()));
  }
  EXPECT_EQ(UnpackedHead(Write(Gzip("one ") + Gzip("two")), 100), "one two");
  EXPECT_EQ(UnpackedHead(Write(Zstd("one ") + Zstd("two")), 100), "one two");
}

TEST_F(FileTextTest, WhatIsNoArchiveHasNoHead) {
  EXPECT_EQ(UnpackedHead(Write("plain text"), 100), "");
  EXPECT_EQ(UnpackedHead(Write("\x1f\x8b and no more of gzip"), 100), "");
  EXPECT_EQ(UnpackedHead(Write("\x28\xb5\x2f\xfd and no more of zstd"), 100), "");
  EXPECT_EQ(UnpackedHead(folder_ / "none", 100), "");
  mkfifo((folder_ / "pipe").c_str(), 0600);
  EXPECT_EQ(UnpackedHead(folder_ / "pipe", 100), "");
}

TEST_F(FileTextTest, TheFooterOfParquetNamesItsColumns) {
  const std::vector<FooterColumn> columns = {
      {"url", 5}, {"score", 60, false}, {"body", 40}, {"title", 7}};
  const std::string footer = ParquetFooter(Write(ParquetFileOf(columns)), 1000);
  EXPECT_EQ(footer, ParquetFooterOf(columns));
  EXPECT_TRUE(parquet::FindTextColumn(footer, "title").ok());
  EXPECT_FALSE(parquet::FindTextColumn(footer, "text").ok());
  EXPECT_EQ(parquet::LargestTextColumn(footer), "body");
  EXPECT_EQ(parquet::LargestTextColumn(ParquetFooterOf({{"score", 60, false}})), "");
  EXPECT_EQ(parquet::LargestTextColumn(footer.substr(0, footer.size() / 2)), "");
  EXPECT_EQ(parquet::LargestTextColumn(ParquetFooterOf({{std::string(120, 'a'), 5}})), "")
      << "of a longer name a message has only the beginning";
}

TEST_F(FileTextTest, WhatIsNoParquetHasNoFooter) {
  const std::string file = ParquetFileOf({{"text", 5}});
  EXPECT_EQ(ParquetFooter(Write(file), 10), "") << "larger than asked for";
  EXPECT_EQ(ParquetFooter(Write(file.substr(8)), 1000), "") << "cut off at its beginning";
  EXPECT_EQ(ParquetFooter(Write(file.substr(0, file.size() - 1)), 1000), "");
  EXPECT_EQ(ParquetFooter(Write("PAR1"), 1000), "");
  EXPECT_EQ(ParquetFooter(folder_ / "none", 1000), "");
}

}  // namespace
}  // namespace nsa
