// data.tokenizer: bpe: any tokenizer.json of byte-level BPE.
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/byte_characters.h"
#include "common/job/data/tokenizer_files.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/data/tokenize/ascii_split.h"
#include "worker/train/data/tokenize/byte_level_bpe.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr int32_t kSeparator = 100000;

Json ByteLevel(bool own_pattern) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", own_pattern}};
}

Json SplitBy(std::string_view pattern) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, ByteLevel(false)})}};
}

// The bytes, the results of the merges from 90000 on, and <|endoftext|>.
Json Tokenizer(const std::vector<std::pair<std::string, std::string>>& merges,
               std::string_view pattern = kCl100kPattern) {
  Json vocab = Json::object();
  int id = 0;
  for (const std::string& character : BytesAsCharacters()) vocab[character] = id++;
  id = 90000;
  for (const auto& [left, right] : merges) vocab[left + right] = id++;
  return {{"added_tokens",
           {{{"id", kSeparator}, {"content", "<|endoftext|>"}, {"special", true}},
            {{"id", kSeparator + 7}, {"content", "<|im start|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", SplitBy(pattern)},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

class BpeJsonTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TextTokenizer>> Load(const Json& json) {
    std::ofstream(dir_ / "tokenizer.json") << json.dump();
    return LoadByteLevelBpe(v1::TOKENIZER_BPE, dir_.path());
  }
  std::vector<Token> Encode(const Json& json, const std::string& text) {
    const auto tokenizer = Load(json);
    EXPECT_OK(tokenizer);
    std::vector<Token> tokens;
    if (!tokenizer.ok()) return tokens;
    EXPECT_OK((*tokenizer)->Encode(text, &tokens));
    return tokens;
  }

  const TempDir dir_;
};

TEST_F(BpeJsonTest, SplitsByThePatternOfTheFile) {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"1", "2"}, {"12", "3"}, {"123", "4"}, {"a", "b"}, {"'", "S"}, {"!", "a"}};
  const std::string text = "1234 ab'S!ab";
  EXPECT_THAT(Encode(Tokenizer(merges), text),
              ElementsAre(90001, '4', ' ', 90003, 90004, '!', 90003));
  EXPECT_THAT(Encode(Tokenizer(merges, kQwen2Pattern), text),
              ElementsAre('1', '2', '3', '4', ' ', 90003, 90004, '!', 90003));
  // A pattern of nobody: digits stay together, what it does not match is a piece too.
  EXPECT_THAT(Encode(Tokenizer(merges, R"(\d+|!)"), text + "!a"),
              ElementsAre(90002, ' ', 90003, 90004, '!', 90003, '!', 'a'));
  Json whole = Tokenizer(merges);
  whole["pre_tokenizer"] = ByteLevel(false);
  EXPECT_THAT(Encode(whole, text + "!a"), ElementsAre(90002, ' ', 90003, 90004, '!', 90003, 90005));
  whole["pre_tokenizer"] = ByteLevel(true);
  EXPECT_THAT(Encode(whole, text), ElementsAre(90002, ' ', 90003, '\'', 'S', '!', 90003));
  whole["pre_tokenizer"] = SplitBy(kCl100kPattern);
  whole["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  whole["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
  EXPECT_EQ(Encode(whole, text), Encode(Tokenizer(merges), text));
}

TEST_F(BpeJsonTest, APieceThatIsATokenBecomesItIfTheFileSaysSo) {
  // "abc" is a token, but the merges make ab c of it.
  Json json = Tokenizer({{"a", "b"}, {"b", "c"}});
  json["model"]["vocab"]["abc"] = 95000;
  json["model"]["vocab"][std::string(200, '=')] = 95001;
  EXPECT_THAT(Encode(json, "abc ab"), ElementsAre(90000, 'c', ' ', 90000));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(Encode(json, "abc"), ElementsAre(95000));
  EXPECT_THAT(Encode(json, std::string(200, '=')), ElementsAre(95001));
  EXPECT_THAT(Encode(json, "abcb"), ElementsAre(90000, 'c', 'b'));
}

TEST_F(BpeJsonTest, HasAsManyTokensAsItsLargestIdAndGivesBackTheBytes) {
  const auto tokenizer = Load(Tokenizer({{"\xc3\x83", "\xc2\xa9"}}));
  ASSERT_OK(tokenizer);
  EXPECT_EQ((*tokenizer)->vocab(), kSeparator + 8);
  EXPECT_EQ((*tokenizer)->separator(), kSeparator);
  std::string text = "é \xff<|endoftext|><|im start|>";
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  std::vector<Token> tokens;
  ASSERT_OK((*tokenizer)->Encode(text, &tokens));
  std::string back;
  for (const Token token : tokens) {
    EXPECT_LT(token, kSeparator) << "a special token in a text is text";
    back += (*tokenizer)->Decode(token);
  }
  EXPECT_EQ(back, text);
  EXPECT_EQ(tokens[0], 90000);
  EXPECT_EQ((*tokenizer)->Decode(kSeparator), "");
  EXPECT_EQ((*tokenizer)->Decode(kSeparator + 7), "<|im start|>");
  EXPECT_EQ((*tokenizer)->Decode(50000), "") << "an id without a token";
  const auto facts = ReadTokenizerFacts(dir_ / "tokenizer.json");
  ASSERT_OK(facts);
  EXPECT_EQ(facts->tokens, kSeparator + 8);
  EXPECT_EQ(facts->separator_id, kSeparator);
  EXPECT_EQ(facts->separator, "<|endoftext|>");
}

TEST_F(BpeJsonTest, ADocumentBeginsWithTheFirstOfTheSeparatorsThatItHas) {
  std::vector<SeparatorName> names(std::begin(kSeparatorNames), std::end(kSeparatorNames));
  for (const SeparatorName& name : names) {
    Json json = Tokenizer({});
    json["added_tokens"][0]["content"] = std::string(name.text);
    const auto tokenizer = Load(json);
    ASSERT_OK(tokenizer);
    EXPECT_EQ((*tokenizer)->separator(), kSeparator) << name.text;
    EXPECT_EQ(ReadTokenizerFacts(dir_ / "tokenizer.json")->separator_id, kSeparator) << name.text;
  }
  Json json = Tokenizer({});
  json["added_tokens"][0]["content"] = "</s>";
  json["added_tokens"][1]["content"] = "<|end_of_text|>";
  EXPECT_EQ((*Load(json))->separator(), kSeparator + 7);
  EXPECT_EQ(ReadTokenizerFacts(dir_ / "tokenizer.json")->separator, "<|end_of_text|>");
  // A </s> that is no added token is a piece of text, such as HTML's.
  json = Tokenizer({});
  json["added_tokens"].erase(0);
  json["model"]["vocab"]["</s>"] = 99;
  json["model"]["vocab"]["c"] = 99999;
  EXPECT_THAT(Load(json), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("no token <|endoftext|>, <|end_of_text|>, </s>")));
  EXPECT_EQ(ReadTokenizerFacts(dir_ / "tokenizer.json")->separator, "");
}

// In parts of a megabyte, which end where pieces end, the tokens are those of the whole text.
TEST_F(BpeJsonTest, EncodesALongTextInPartsAsAWhole) {
  const auto tokenizer = Load(Tokenizer({{"a", "b"}, {"ab", "ab"}, {"1", "2"}, {"12", "3"}}));
  ASSERT_OK(tokenizer);
  std::mt19937 random(7);
  const std::string words[] = {"ab", "abab", " ", "\n\n", "123", "'s", "é", "\u2028", "!?", "\xff"};
  std::string text;
  while (text.size() < size_t{3} << 20) text += words[random() % std::size(words)];
  text += std::string(2 << 20, ' ') + "ab";
  std::vector<Token> whole, joined;
  ASSERT_OK((*tokenizer)->Encode(text, &whole));
  size_t parts = 0;
  ReadProgress progress;
  ASSERT_OK((*tokenizer)
                ->EncodeInParts(
                    text,
                    [&](std::span<const Token> part) {
                      ++parts;
                      joined.insert(joined.end(), part.begin(), part.end());
                      return absl::OkStatus();
                    },
                    &progress));
  EXPECT_EQ(joined, whole);
  EXPECT_GE(parts, 4u);
  EXPECT_EQ(progress.bytes, static_cast<int64_t>(text.size()));
  const absl::Status full = absl::UnavailableError("full");
  EXPECT_EQ((*tokenizer)
                ->EncodeInParts(
                    text, [&](auto) { return full; }, nullptr),
            full);
}

TEST_F(BpeJsonTest, WhatItDoesNotSupportIsRefusedByItsName) {
  const std::map<std::string, std::function<void(Json*)>> changes = {
      {"model.type: \"Unigram\"", [](Json* json) { (*json)["model"]["type"] = "Unigram"; }},
      {"model.byte_fallback: true", [](Json* json) { (*json)["model"]["byte_fallback"] = true; }},
      {"model.ignore_merges: 7", [](Json* json) { (*json)["model"]["ignore_merges"] = 7; }},
      {"normalizer: {\"type\":\"NFKC\"}",
       [](Json* json) { (*json)["normalizer"]["type"] = "NFKC"; }},
      {"pre_tokenizer: null", [](Json* json) { json->erase("pre_tokenizer"); }},
      {"pre_tokenizer: {\"type\":\"Metaspace\"}",
       [](Json* json) {
         (*json)["pre_tokenizer"] = {{"type", "Metaspace"}};
       }},
      {"pre_tokenizer: {\"add_prefix_space\":true",
       [](Json* json) {
         (*json)["pre_tokenizer"] = ByteLevel(true);
         (*json)["pre_tokenizer"]["add_prefix_space"] = true;
       }},
      {"pre_tokenizer: {\"pretokenizers\":[{",
       [](Json* json) { (*json)["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true; }},
      {"pre_tokenizer: {\"pretokenizers\":[]",
       [](Json* json) { (*json)["pre_tokenizer"]["pretokenizers"] = Json::array(); }},
      {"pre_tokenizer: {\"behavior\":\"Removed\"",
       [](Json* json) { (*json)["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }},
      {"pre_tokenizer: {\"behavior\":\"Isolated\",\"invert\":true",
       [](Json* json) { (*json)["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }},
      {"pre_tokenizer: pattern: {\"String\":\" \"}",
       [](Json* json) {
         (*json)["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", " "}};
       }},
      {"pattern: \"\\\\w+\" (has '\\w' at byte 0",
       [](Json* json) { (*json)["pre_tokenizer"] = SplitBy("\\w+"); }},
      {"pattern: matches the empty text",
       [](Json* json) { (*json)["pre_tokenizer"] = SplitBy("a*"); }},
      {"missing closing parenthesis", [](Json* json) { (*json)["pre_tokenizer"] = SplitBy("(a"); }},
      {"added_tokens: {", [](Json* json) { (*json)["added_tokens"][1]["special"] = false; }},
      {"token <|endoftext|>: its id", [](Json* json) { (*json)["added_tokens"][0]["id"] = 7; }},
      {"has id 1048576", [](Json* json) { (*json)["added_tokens"][0]["id"] = 1 << 20; }},
      {"no token for byte 65", [](Json* json) { (*json)["model"]["vocab"].erase("A"); }},
      {"no token <|endoftext|>", [](Json* json) { (*json)["added_tokens"].erase(0); }},
      {"the merge 'a b' stands twice",
       [](Json* json) { (*json)["model"]["merges"].push_back("a b"); }}};
  for (const auto& [why, change] : changes) {
    Json json = Tokenizer({{"a", "b"}});
    change(&json);
    EXPECT_THAT(Load(json), StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr("tokenizer.json: "), HasSubstr(why))));
  }
}

// Of the same file gpt2 says what reads it.
TEST_F(BpeJsonTest, Gpt2RefusesAFileThatBpeReads) {
  ASSERT_OK(Load(Tokenizer({{"a", "b"}})));
  EXPECT_THAT(LoadByteLevelBpe(v1::TOKENIZER_GPT2, dir_.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("pre_tokenizer: "), HasSubstr("data.tokenizer: bpe"))));
}

TEST_F(BpeJsonTest, IsReadBesideFilesOfGpt2) {
  std::ofstream(dir_ / "vocab.json") << "{}";
  EXPECT_OK(Load(Tokenizer({})));
  std::filesystem::remove(dir_ / "tokenizer.json");
  EXPECT_THAT(LoadByteLevelBpe(v1::TOKENIZER_BPE, dir_.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tokenizer.json")));
}

TEST_F(BpeJsonTest, APatternThatFailsNamesTheByte) {
  const auto tokenizer = Load(Tokenizer({}, "(a+)+(?!a)[bc]"));
  ASSERT_OK(tokenizer);
  std::vector<Token> tokens;
  EXPECT_THAT((*tokenizer)->Encode("b" + std::string(200, 'a'), &tokens),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("from byte 0 on")));
}

}  // namespace
}  // namespace nsa::train
