#include "common/job/data/tokenizer_files.h"

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <utility>

#include "common/job/load.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTokenizer[] =
    R"({"added_tokens": [{"id": 9, "content": "</s>", "special": true, "more": {"id": 70}},
                         {"id": 11, "content": "<|end_of_text|>", "special": true}],
        "model": {"type": "BPE", "vocab": {"a": 0, "<eos>": 3}, "merges": [["id", "a"]]},
        "post_processor": {"special_tokens": {"</s>": {"id": 500}}, "vocab": {"b": 600}}})";

class TokenizerFiles : public testing::Test {
 protected:
  absl::StatusOr<TokenizerFacts> Read(const std::string& text) {
    std::ofstream(dir_ / "tokenizer.json") << text;
    return ReadTokenizerFacts(dir_ / "tokenizer.json");
  }
  const TempDir dir_;
};

TEST_F(TokenizerFiles, AreThoseThatTheTokenizerReads) {
  const std::filesystem::path folder = dir_.path(), json = folder / "tokenizer.json";
  const auto gpt2 = [&] { return TokenizerFilesOf(v1::TOKENIZER_GPT2, folder); };
  EXPECT_THAT(gpt2(), ElementsAre(folder / "vocab.json", folder / "merges.txt"));
  std::ofstream(json.string()) << "{}";
  EXPECT_THAT(gpt2(), ElementsAre(json));
  std::ofstream(folder / "vocab.json") << "{}";
  EXPECT_THAT(gpt2(), ElementsAre(folder / "vocab.json", folder / "merges.txt"));
  EXPECT_THAT(TokenizerFilesOf(v1::TOKENIZER_BPE, folder), ElementsAre(json));
  EXPECT_THAT(TokenizerFilesOf(v1::TOKENIZER_BPE, "/a/b.json"), ElementsAre("/a/b.json"));
}

TEST_F(TokenizerFiles, SayHowManyTokensThereAreAndWhichOneBeginsADocument) {
  const auto facts = Read(kTokenizer);
  ASSERT_OK(facts);
  EXPECT_EQ(facts->tokens, 12);
  EXPECT_EQ(facts->separator, "<|end_of_text|>");
  EXPECT_EQ(facts->separator_id, 11);
}

TEST_F(TokenizerFiles, MayBeginWithAByteOrderMark) {
  const auto facts = Read(std::string("\xEF\xBB\xBF") + kTokenizer);
  ASSERT_OK(facts);
  EXPECT_EQ(facts->tokens, 12);
}

TEST_F(TokenizerFiles, AreRefusedWithWhatIsWrong) {
  const std::pair<std::string, const char*> wrong[] = {
      {"", "is not JSON"},
      {std::string(kTokenizer).substr(0, 100), "is not JSON"},
      {"[]", "no tokens in model.vocab"},
      {R"({"model": {"vocab": {"a": 1048576}}})", "has a token with the id 1048576 (0 … 1048575)"},
      {R"({"model": {"vocab": {"a": -1}}})", "has a token with the id -1"},
      {std::string(65, '['), "is nested deeper than 64 levels"}};
  for (const auto& [text, why] : wrong) {
    EXPECT_THAT(Read(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr("tokenizer.json: "), HasSubstr(why))));
  }
  std::filesystem::resize_file(dir_ / "tokenizer.json", (64 << 20) + 1);
  EXPECT_THAT(ReadTokenizerFacts(dir_ / "tokenizer.json"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("67108865 bytes (at most")));
  EXPECT_THAT(ReadTokenizerFacts(dir_ / "none.json"), StatusIs(absl::StatusCode::kNotFound));
  mkfifo((dir_ / "pipe.json").c_str(), 0600);  // opening it would wait for a writer
  EXPECT_THAT(ReadTokenizerFacts(dir_ / "pipe.json"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a regular file")));
}

TEST_F(TokenizerFiles, GiveAJobItsVocabulary) {
  std::ofstream(dir_ / "tokenizer.json") << kTokenizer;
  v1::JobSpec spec;
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
  spec.mutable_data()->set_tokenizer_path(".");
  ASSERT_OK(PlaceJob("job.yaml", dir_.path(), &spec));
  EXPECT_EQ(spec.model().vocab(), 12);
  spec.mutable_model()->set_vocab(16);
  ASSERT_OK(PlaceJob("job.yaml", dir_.path(), &spec));
  EXPECT_EQ(spec.model().vocab(), 16) << "the job's own stays";
  spec.mutable_model()->clear_vocab();
  spec.mutable_data()->set_tokenizer_path("/none");
  ASSERT_OK(PlaceJob("job.yaml", dir_.path(), &spec));
  EXPECT_FALSE(spec.model().has_vocab());
}

}  // namespace
}  // namespace nsa
