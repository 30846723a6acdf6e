// The formats of token files, and what is refused as one.
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/job/data_source.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/data/corpus.h"

namespace nsa::train {
namespace {

using std::string_view_literals::operator""sv;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::string Raw(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

// As numpy.save() writes it: the header is padded with spaces to a multiple of 64 bytes.
std::string Npy(int major, const std::string& descr, const std::string& shape,
                const std::string& data, const std::string& order = "False") {
  std::string dictionary =
      absl::StrFormat("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", descr, order, shape);
  const size_t preamble = major == 1 ? 10 : 12;
  dictionary.resize((preamble + dictionary.size() + 1 + 63) / 64 * 64 - preamble - 1, ' ');
  dictionary += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  const auto length = static_cast<uint32_t>(dictionary.size());
  file += Raw(std::vector<uint32_t>{length}).substr(0, major == 1 ? 2 : 4);
  return file + dictionary + data;
}

std::string LlmC(int32_t magic, int32_t version, int32_t count, const std::string& data) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return Raw(header) + data;
}

// A Megatron index of sequences of these lengths.
std::string MegatronIndex(uint8_t code, int width, const std::vector<int32_t>& lengths,
                          const std::vector<int64_t>& bounds) {
  std::vector<int64_t> pointers;
  int64_t at = 0;
  for (const int32_t length : lengths) {
    pointers.push_back(at);
    at += int64_t{length} * width;
  }
  return std::string("MMIDIDX\0\0", 9) + Raw(std::vector<uint64_t>{1}) +
         std::string(1, static_cast<char>(code)) +
         Raw(std::vector<uint64_t>{lengths.size(), bounds.size()}) + Raw(lengths) + Raw(pointers) +
         Raw(bounds);
}

class TokenFiles : public testing::Test {
 protected:
  void Write(const std::string& name, std::string_view content) {
    std::ofstream(dir_ / name, std::ios::binary) << content;
  }
  absl::StatusOr<Corpus> Load(const std::string& name, int32_t vocab = 65536) {
    v1::DataSpec spec;
    spec.set_source(v1::DATA_SOURCE_TOKENS);
    if (separator_) spec.set_separator(*separator_);
    spec.add_path((dir_ / name).string());
    return LoadCorpus(spec, vocab, absl::Seconds(20));
  }
  std::vector<int32_t> TokensOf(const std::string& name, int32_t vocab = 65536) {
    const auto corpus = Load(name, vocab);
    EXPECT_OK(corpus) << name;
    if (!corpus.ok()) return {};
    std::vector<int32_t> tokens(corpus->parts[0].train->size());
    EXPECT_OK(corpus->parts[0].train->Copy(0, tokens));
    return tokens;
  }
  void ExpectRefused(const std::string& name, std::string_view content, const std::string& why) {
    Write(name, content);
    const auto corpus = Load(name);
    EXPECT_FALSE(corpus.ok()) << why;
    EXPECT_THAT(std::string(corpus.status().message()), AllOf(HasSubstr(name), HasSubstr(why)));
  }

  const TempDir dir_;
  std::optional<std::string> separator_ = "0";
};

TEST_F(TokenFiles, ATokenOutsideTheVocabularyIsNamedAtItsOwnPlace) {
  Write("a.npy", Npy(1, "<u2", "(7,)", Raw<uint16_t>({7, 0, 8, 9, 474, 500, 1})));
  EXPECT_THAT(Load("a.npy", 256), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("a.npy: token 4: token 474"),
                                                 HasSubstr("model.vocab is 256"))));
  separator_ = "none";
  EXPECT_THAT(Load("a.npy", 256),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a.npy: token 4: token 474")));
}

TEST_F(TokenFiles, ANumpyArrayIsReadWithoutItsHeader) {
  const std::string two = Raw<uint16_t>({7, 50000, 9}), four = Raw<uint32_t>({7, 50000, 9}),
                    eight = Raw<int64_t>({7, 50000, 9});
  Write("1u2.npy", Npy(1, "<u2", "(3,)", two));
  Write("1u4.npy", Npy(1, "<u4", "(3,)", four));
  Write("2i4.npy", Npy(2, "<i4", "(3,)", four));
  Write("3i8.npy", Npy(3, "<i8", "(3,)", eight));
  Write("named.bin", Npy(1, "<u4", "(3,)", four));  // the name does not matter
  for (const char* name : {"1u2.npy", "1u4.npy", "2i4.npy", "3i8.npy", "named.bin"}) {
    EXPECT_THAT(TokensOf(name), ElementsAre(0, 7, 50000, 9)) << name;
  }
  Write("empty.npy", Npy(1, "<u2", "(0,)", ""));
  EXPECT_THAT(Load("empty.npy"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
}

TEST_F(TokenFiles, ANumpyArrayThatHoldsNoTokensIsRefused) {
  const std::string data = Raw<uint16_t>({1, 2, 3, 4});
  ExpectRefused("a.npy", Npy(1, ">u2", "(4,)", data), "dtype '>u2' (<u2, <u4, <i4 or <i8)");
  ExpectRefused("a.npy", Npy(1, "<f4", "(2,)", data), "dtype '<f4'");
  ExpectRefused("a.npy", Npy(1, "<u2", "(2, 2)", data), "shape (2, 2) (one dimension)");
  ExpectRefused("a.npy", Npy(1, "<u2", "()", data), "one dimension");
  ExpectRefused("a.npy", Npy(1, "<u2", "(4,)", data, "True"), "fortran_order");
  ExpectRefused("a.npy", Npy(9, "<u2", "(4,)", data), "byte 6: version 9.0");
}

TEST_F(TokenFiles, ANumpyHeaderThatLiesOrIsCutOffIsRefused) {
  const std::string data = Raw<uint16_t>({1, 2, 3, 4});
  const std::string whole = Npy(1, "<u2", "(4,)", data);
  for (size_t size = 8; size < whole.size(); ++size) {
    ExpectRefused("a.npy", whole.substr(0, size), "a.npy: byte ");
  }
  ExpectRefused("a.npy", whole + "x", "promises 4 tokens of 2 bytes, but 9 bytes follow");
  ExpectRefused("a.npy", Npy(1, "<u2", "(9223372036854775807,)", data), "promises");
  ExpectRefused("a.npy", Npy(1, "<i8", "(4611686018427387905,)", data), "promises");
  ExpectRefused("a.npy", Npy(1, "<u2", "(-4,)", data), "shape (-4,)");
  ExpectRefused("a.npy", "\x93NUMPY\x02\0\xff\xff\xff\xff"sv, "header of 4294967295 bytes");
}

TEST_F(TokenFiles, AnLlmCFileIsReadWithoutItsHeader) {
  const std::string data = Raw<uint16_t>({50256, 11, 12});
  Write("shard.bin", LlmC(20240520, 1, 3, data));
  EXPECT_THAT(TokensOf("shard.bin"), ElementsAre(0, 50256, 11, 12));
  ExpectRefused("a.bin", LlmC(20240520, 1, 4, data), "promises 4 tokens, but 6 bytes follow");
  ExpectRefused("a.bin", LlmC(20240520, 1, 2, data), "promises 2 tokens");
  ExpectRefused("a.bin", LlmC(20240520, 1, -1, data), "promises -1 tokens");
  ExpectRefused("a.bin", LlmC(20240520, 2, 3, data), "byte 4: llm.c version 2");
  ExpectRefused("a.bin", LlmC(20240520, 1, 3, data).substr(0, 1000), "1000 bytes (an llm.c header");
}

TEST_F(TokenFiles, AnLlmCFileOfLlama3HasTokensOfFourBytes) {
  const std::string data = Raw<uint32_t>({128001, 11, 70000});
  Write("shard.bin", LlmC(20240801, 7, 3, data));
  EXPECT_THAT(TokensOf("shard.bin", 128256), ElementsAre(0, 128001, 11, 70000));
  ExpectRefused("a.bin", LlmC(20240801, 7, 6, data), "promises 6 tokens, but 12 bytes follow");
  ExpectRefused("a.bin", LlmC(20240801, 1, 3, data), "llm.c version 1 (7, with uint32 tokens)");
  ExpectRefused("a.bin", LlmC(20240520, 7, 3, data), "llm.c version 7 (1, with uint16 tokens)");
}

TEST_F(TokenFiles, EveryFormatOfFourBytesHasTokensOfALargeVocabulary) {
  const std::vector<int32_t> tokens = {7, 65535, 65536, 1048574};
  Write("u4.npy", Npy(1, "<u4", "(4,)", Raw(tokens)));
  Write("i4.npy", Npy(1, "<i4", "(4,)", Raw(tokens)));
  Write("set.idx", MegatronIndex(4, 4, {4}, {0, 1}));
  Write("set.bin", Raw(tokens));
  for (const char* name : {"u4.npy", "i4.npy", "set.bin"}) {
    EXPECT_THAT(TokensOf(name, 1048575), ElementsAre(0, 7, 65535, 65536, 1048574)) << name;
  }
  separator_ = "65536";
  EXPECT_THAT(TokensOf("u4.npy", 1048575), ElementsAre(65536, 7, 65535, 65536, 1048574));
  EXPECT_EQ(Load("u4.npy", 1048575)->info.documents, 2);
}

TEST_F(TokenFiles, AFileOfUint32WithoutAHeaderIsRefused) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 300; ++i) tokens.push_back(i * 419 % 128256);
  ExpectRefused("raw.bin", Raw(tokens), "look like uint32");
  for (uint32_t& token : tokens) token %= 50257;
  ExpectRefused("raw.bin", Raw(tokens), "look like uint32");
}

TEST_F(TokenFiles, AMegatronDataSetIsReadWithTheDocumentsOfItsIndex) {
  // Three documents of four sequences; the first ends with the separator, the last is empty.
  Write("set.idx", MegatronIndex(8, 2, {2, 3, 1, 0}, {0, 1, 3, 4}));
  Write("set.bin", Raw<uint16_t>({7, 0, 8, 9, 10, 11}));
  EXPECT_THAT(TokensOf("set.bin"), ElementsAre(0, 7, 0, 8, 9, 10, 11));
  EXPECT_EQ(Load("set.bin")->info.documents, 2);
  separator_.reset();
  EXPECT_THAT(TokensOf("set.bin"), ElementsAre(7, 0, 8, 9, 10, 11)) << "without a separator";
  EXPECT_EQ(Load("set.bin")->info.documents, 2);
  EXPECT_EQ(Load("set.bin")->separator, kNoSeparator);
  separator_ = "0";
  Write("wide.idx", MegatronIndex(4, 4, {2, 3}, {0, 1, 2}) + std::string(2, '\0'));  // with modes
  Write("wide.bin", Raw<int32_t>({7, 8, 9, 10, 50000}));
  EXPECT_THAT(TokensOf("wide.bin"), ElementsAre(0, 7, 8, 0, 9, 10, 50000));
  Write("narrow.idx", MegatronIndex(1, 1, {2, 3}, {0, 1, 2}));
  Write("narrow.bin", "\x07\x08\x09\xfe\xff");
  EXPECT_THAT(TokensOf("narrow.bin"), ElementsAre(0, 7, 8, 0, 9, 254, 255));
}

TEST_F(TokenFiles, AMegatronIndexThatDoesNotFitIsRefused) {
  const std::string good = MegatronIndex(8, 2, {2, 3}, {0, 1, 2});
  Write("set.bin", Raw<uint16_t>({1, 2, 3, 4, 5}));
  const auto refused = [&](const std::string& index, const std::string& why) {
    Write("set.idx", index);
    const auto corpus = Load("set.bin");
    EXPECT_FALSE(corpus.ok()) << why;
    EXPECT_THAT(std::string(corpus.status().message()), AllOf(HasSubstr("set."), HasSubstr(why)));
  };
  for (size_t size = 0; size < good.size(); ++size) refused(good.substr(0, size), "set.idx");
  refused(MegatronIndex(7, 4, {2, 3}, {0, 1, 2}), "dtype code 7");
  refused(MegatronIndex(4, 4, {2, 3}, {0, 1, 2}), "10 bytes (must be a multiple of 4");
  refused(MegatronIndex(8, 2, {2, 4}, {0, 1, 2}), "would end at token 6 (the .bin file has 5)");
  refused(MegatronIndex(8, 2, {2, -3}, {0, 1, 2}), "-3 tokens");
  refused(MegatronIndex(8, 2, {2, 2}, {0, 1, 2}), "have 4 tokens (the .bin file has 5)");
  refused(MegatronIndex(8, 4, {2, 3}, {0, 1, 2}), "begins at byte 8 of the .bin file (4");
  refused(MegatronIndex(8, 2, {2, 3}, {0, 2, 1}), "document bound 2 is 1");
  refused(MegatronIndex(8, 2, {2, 3}, {1, 2}), "document bound 0 is 1");
  refused(MegatronIndex(8, 2, {2, 3}, {}), "no document bounds");
  std::string huge = good;
  huge.replace(18, 8, "\xff\xff\xff\xff\xff\xff\xff\xff");
  refused(huge, "18446744073709551615 sequences");
  refused("TNTIDX\0\0 an older index", "move the .idx file away");
  Write("set.idx", good);
  EXPECT_THAT(Load("set.idx"), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("a Megatron index, not a token file")));
}

TEST_F(TokenFiles, ATokenThatDoesNotFitIsRefusedWithItsPlace) {
  Write("a.npy", Npy(1, "<u4", "(3,)", Raw<uint32_t>({1, 1048575, 1048576})));
  EXPECT_THAT(Load("a.npy"), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("token 2, at byte 136: 1048576")));
  Write("b.npy", Npy(1, "<i4", "(2,)", Raw<int32_t>({1, -1})));
  EXPECT_THAT(Load("b.npy"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token 1, at byte 132: -1")));
  Write("c.npy", Npy(1, "<u4", "(2,)", Raw<uint32_t>({1, 1000})));
  EXPECT_THAT(Load("c.npy", 1000),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model.vocab is 1000")));
}

TEST_F(TokenFiles, AFileOfAnotherKindIsRefusedWithWhatItIs) {
  const std::string zeros(200, '\0');
  const std::pair<std::string, const char*> files[] = {
      {std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10) + zeros, "a gzip archive"},
      {"\x28\xb5\x2f\xfd" + zeros, "a Zstandard archive"},
      {"PAR1" + zeros, "a Parquet file"},
      {"PK\x03\x04" + zeros, "a zip archive"},
      {std::string("\x40\0\0\0\0\0\0\0{\"__metadata__\":", 24) + zeros, "a safetensors file"},
      {"\x80\x04\x95" + std::string("\x20\0\0\0\0\0\0\0", 8) + zeros, "a Python pickle"},
      {std::string("\x80\x02}q\0", 5) + zeros + "!", "a Python pickle"},
      {"\x89PNG\r\n\x1a\n" + zeros, "a PNG image"},
      {"\x89HDF\r\n\x1a\n" + zeros, "an HDF5 file"},
      {"{\"text\": \"" + std::string(100, 'a') + "\"}\n\n", "text, not a token file"},
      {"aé" + std::string(1019, 'a') + "éé!", "text, not a token file"},
  };
  for (const auto& [content, why] : files) ExpectRefused("a.bin", content, why);
}

TEST_F(TokenFiles, RawTokensOfEveryValueStayReadable) {
  std::vector<uint16_t> all;
  for (int token = 65535; token > 0; --token) all.push_back(static_cast<uint16_t>(token));
  Write("raw.bin", Raw(all));
  EXPECT_EQ(Load("raw.bin")->info.tokens, 65536);
  // First tokens that look like the short marks of gzip and of a pickle.
  for (const uint16_t first : {0x8b1f, 0x0480, 0x0280, 0x4b50}) {
    Write("raw.bin", Raw<uint16_t>({first, 1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(TokensOf("raw.bin").at(1), first);
  }
}

TEST_F(TokenFiles, AFolderIsNoTokenFile) {
  std::filesystem::create_directory(dir_ / "folder");
  EXPECT_THAT(Load("folder"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a folder")));
}

}  // namespace
}  // namespace nsa::train
