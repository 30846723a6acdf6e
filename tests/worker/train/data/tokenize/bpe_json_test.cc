// data.tokenizer: bpe: any tokenizer.json of byte-level BPE.
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/characters/byte_characters.h"
#include "common/job/data/tokenizer_files.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/data/tokenize/ascii_split.h"
#include "worker/train/data/tokenize/bpe.h"

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
    return LoadBpe(v1::TOKENIZER_BPE, dir_.path());
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

Json Sequence(std::vector<Json> parts) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
}

Json Added(int id, const std::string& content, bool special, bool normalized) {
  return {
      {"id", id},          {"content", content}, {"special", special},  {"normalized", normalized},
      {"lstrip", special}, {"rstrip", false},    {"single_word", false}};
}

// What follows divides the pieces of what is before it.
TEST_F(BpeJsonTest, SplitsByASequence) {
  Json json = Tokenizer({{"1", "2"}, {"12", "3"}, {"a", "."}, {".", "("}, {"\xc4\xa0", "1"}});
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  json["pre_tokenizer"] = Sequence({digits, ByteLevel(true)});
  EXPECT_THAT(Encode(json, "123a.( 1"), ElementsAre('1', '2', '3', 'a', 90003, ' ', '1'));
  json["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false;
  EXPECT_THAT(Encode(json, "123a.( 1"), ElementsAre(90001, 'a', 90003, ' ', '1'));
  json["pre_tokenizer"] = Sequence({ByteLevel(true)});
  EXPECT_THAT(Encode(json, "123a.( 1"), ElementsAre(90001, 'a', 90003, 90004));
  const Json text = {{"type", "Split"}, {"pattern", {{"String", ".("}}}, {"behavior", "Isolated"}};
  json["pre_tokenizer"] = Sequence({text, ByteLevel(false)});
  EXPECT_THAT(Encode(json, "123a.( 1a."), ElementsAre(90001, 'a', 90003, 90004, 90002));
}

TEST_F(BpeJsonTest, NormalizesToNfcIfTheFileSaysSo) {
  Json json = Tokenizer({{"\xc3\x83", "\xc2\xa9"}});
  const std::string decomposed = "e\u0301";
  EXPECT_EQ(Encode(json, decomposed).size(), 3u);
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_THAT(Encode(json, decomposed), ElementsAre(90000));
  EXPECT_THAT(Encode(json, "é" + decomposed), ElementsAre(90000, 90000));
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  EXPECT_THAT(Encode(json, decomposed), ElementsAre(90000));
  json["normalizer"]["normalizers"] = Json::array();
  EXPECT_EQ(Encode(json, decomposed).size(), 3u);
  // A text may grow threefold.
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(Encode(json, "\U0001d160").size(), 12u);
}

// Those that are looked for in the text itself come before normalization, the others after it.
TEST_F(BpeJsonTest, AddedTokensThatAreNotSpecialAreCutOutOfTheText) {
  Json json = Tokenizer({{"a", "b"}, {"\xc3\x83", "\xc2\xa9"}});
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"].push_back(Added(100001, "<think>", false, false));
  json["added_tokens"].push_back(Added(100002, "<|x|>", true, false));
  json["added_tokens"].push_back(Added(100003, "o\u0308", false, true));
  json["added_tokens"].push_back(Added(100004, "x|", false, false));
  EXPECT_THAT(Encode(json, "ab<think>ab"), ElementsAre(90000, 100001, 90000));
  EXPECT_THAT(Encode(json, "<think>\u0338"), ElementsAre(100001, 0xcc, 0xb8))
      << "U+0338 would make another character of >";
  EXPECT_THAT(Encode(json, "<|x|>x|"), ElementsAre('<', '|', 'x', '|', '>', 100004))
      << "a special token is text, in which nothing is looked for";
  EXPECT_THAT(Encode(json, "o\u0308ö"), ElementsAre(100003, 100003));
  EXPECT_THAT(Encode(json, "<think"), ElementsAre('<', 't', 'h', 'i', 'n', 'k'));
  const auto tokenizer = Load(json);
  ASSERT_OK(tokenizer);
  EXPECT_EQ((*tokenizer)->Decode(100001), "<think>");
  EXPECT_EQ((*tokenizer)->Decode(100003), "o\u0308");
}

// In parts of a megabyte, which end where pieces end, the tokens are those of the whole text.
TEST_F(BpeJsonTest, EncodesALongTextInPartsAsAWhole) {
  Json json = Tokenizer({{"a", "b"}, {"ab", "ab"}, {"1", "2"}, {"12", "3"}});
  json["normalizer"] = {{"type", "NFC"}};
  json["pre_tokenizer"] =
      Sequence({{{"type", "Digits"}, {"individual_digits", false}}, ByteLevel(true)});
  json["added_tokens"].push_back(Added(100001, "<tool>", false, false));
  json["added_tokens"].push_back(Added(100002, "!?'", false, true));
  const auto tokenizer = Load(json);
  ASSERT_OK(tokenizer);
  std::mt19937 random(7);
  const std::string words[] = {"ab",     "abab", " ",    "\n\n",   "123",     "'s",    "é",
                               "\u2028", "!?",   "\xff", "<tool>", "e\u0301", "\u0301"};
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

// What the message of the refusal says, and the change of a good file that causes it.
struct Unsupported {
  const char* why;
  void (*change)(Json* json);
};
constexpr Unsupported kUnsupported[] = {
    {"model.type: \"Unigram\"", [](Json* json) { (*json)["model"]["type"] = "Unigram"; }},
    {"model.byte_fallback: 7", [](Json* json) { (*json)["model"]["byte_fallback"] = 7; }},
    {"model.ignore_merges: 7", [](Json* json) { (*json)["model"]["ignore_merges"] = 7; }},
    {"normalizer: {\"type\":\"NFKC\"} (NFC or none)",
     [](Json* json) { (*json)["normalizer"]["type"] = "NFKC"; }},
    {"normalizer: {\"type\":\"Lowercase\"}",
     [](Json* json) {
       (*json)["normalizer"] = {{"type", "Sequence"},
                                {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}};
     }},
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
    {"pre_tokenizer: {\"pretokenizers\":[]",
     [](Json* json) { (*json)["pre_tokenizer"]["pretokenizers"] = Json::array(); }},
    {"a Sequence of 1 to 16",
     [](Json* json) {
       (*json)["pre_tokenizer"]["pretokenizers"] = Json::array();
       for (int i = 0; i < 17; ++i) {
         (*json)["pre_tokenizer"]["pretokenizers"].push_back(ByteLevel(false));
       }
     }},
    {"pre_tokenizer.pretokenizers[0]: {\"add_prefix_space\"",
     [](Json* json) {
       (*json)["pre_tokenizer"]["pretokenizers"] = {ByteLevel(true), ByteLevel(true)};
     }},
    {"pre_tokenizer.pretokenizers[0]: {\"type\":\"Punctuation\"}",
     [](Json* json) {
       (*json)["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Punctuation"}};
     }},
    {"pre_tokenizer.pretokenizers[0]: {\"type\":\"Digits\"}",
     [](Json* json) {
       (*json)["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Digits"}};
     }},
    {"pre_tokenizer.pretokenizers[1]: {\"add_prefix_space\":true",
     [](Json* json) { (*json)["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }},
    {"pre_tokenizer.pretokenizers[0]: {\"behavior\":\"Removed\"",
     [](Json* json) { (*json)["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }},
    {"pre_tokenizer.pretokenizers[0]: {\"behavior\":\"Removed\"",
     [](Json* json) {
       (*json)["pre_tokenizer"] = SplitBy(kDigitPattern);
       (*json)["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
       (*json)["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
     }},
    {"pre_tokenizer.pretokenizers[0]: {\"behavior\":\"Isolated\",\"invert\":true",
     [](Json* json) { (*json)["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }},
    {"pre_tokenizer.pretokenizers[0].pattern: {\"Regexp\":\" \"}",
     [](Json* json) {
       (*json)["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regexp", " "}};
     }},
    {"pre_tokenizer.pretokenizers[0].pattern: \"\" (has 0 bytes",
     [](Json* json) {
       (*json)["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", ""}};
     }},
    {"pattern: \"\\\\w+\" (has '\\w' at byte 0",
     [](Json* json) { (*json)["pre_tokenizer"] = SplitBy("\\w+"); }},
    {"pattern: matches the empty text",
     [](Json* json) { (*json)["pre_tokenizer"] = SplitBy("a*"); }},
    {"missing closing parenthesis", [](Json* json) { (*json)["pre_tokenizer"] = SplitBy("(a"); }},
    {"added_tokens: normalized: {",
     [](Json* json) { (*json)["added_tokens"][1]["special"] = false; }},
    {"added_tokens: rstrip: {",
     [](Json* json) {
       (*json)["added_tokens"][1]["special"] = false;
       (*json)["added_tokens"][1]["rstrip"] = 7;
     }},
    {"added_tokens: {\"content\":7", [](Json* json) { (*json)["added_tokens"][1]["content"] = 7; }},
    {"added_tokens: the token with the id 100007: has 0 bytes (from 1 to 256)",
     [](Json* json) {
       (*json)["added_tokens"][1]["special"] = false;
       (*json)["added_tokens"][1]["normalized"] = true;
       (*json)["added_tokens"][1]["content"] = "";
     }},
    {"token <|endoftext|>: duplicate id", [](Json* json) { (*json)["added_tokens"][0]["id"] = 7; }},
    {"has id 1048576", [](Json* json) { (*json)["added_tokens"][0]["id"] = 1 << 20; }},
    {"no token for byte 65", [](Json* json) { (*json)["model"]["vocab"].erase("A"); }},
    {"no token <|endoftext|>", [](Json* json) { (*json)["added_tokens"].erase(0); }},
    {"duplicate merge 'a b'", [](Json* json) { (*json)["model"]["merges"].push_back("a b"); }},
};

TEST_F(BpeJsonTest, WhatItDoesNotSupportIsRefusedByItsName) {
  for (const auto& [why, change] : kUnsupported) {
    Json json = Tokenizer({{"a", "b"}});
    change(&json);
    EXPECT_THAT(Load(json), StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr("tokenizer.json: "), HasSubstr(why))));
  }
}

// GPT-NeoX's has none for them.
TEST_F(BpeJsonTest, BytesThatNoUtf8HasNeedNoTokens) {
  Json json = Tokenizer({{"a", "b"}});
  const auto characters = BytesAsCharacters();
  for (const int byte : {0xc0, 0xc1, 0xf5, 0xff}) json["model"]["vocab"].erase(characters[byte]);
  EXPECT_THAT(Encode(json, "ab\xfe\xc2"), ElementsAre(90000, 0xfe, 0xc2));
  const auto tokenizer = Load(json);
  ASSERT_OK(tokenizer);
  std::vector<Token> tokens;
  EXPECT_THAT(
      (*tokenizer)->Encode("ab ab\xff", &tokens),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("byte 255, which no UTF-8 has")));
  json["model"]["vocab"].erase(characters[0xf4]);
  EXPECT_THAT(Load(json),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no token for byte 244")));
}

// Of the same file gpt2 says what reads it.
TEST_F(BpeJsonTest, Gpt2RefusesAFileThatBpeReads) {
  ASSERT_OK(Load(Tokenizer({{"a", "b"}})));
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir_.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("pre_tokenizer: "), HasSubstr("data.tokenizer: bpe"))));
}

TEST_F(BpeJsonTest, IsReadBesideFilesOfGpt2) {
  std::ofstream(dir_ / "vocab.json") << "{}";
  EXPECT_OK(Load(Tokenizer({})));
  std::filesystem::remove(dir_ / "tokenizer.json");
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_BPE, dir_.path()),
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
