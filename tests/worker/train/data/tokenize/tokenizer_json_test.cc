// Tokenizers in Hugging Face's tokenizer.json.
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/characters/byte_characters.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/data/tokenize/bpe.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"h", "e"}, {"\xc4\xa0", "t"}, {"\xc4\xa0t", "he"},
    {"a", "b"}, {"ab", "ab"},      {"\xc3\x83", "\xc2\xa9"}};

// The bytes, the results of the merges, and <|endoftext|>, which is an added token.
Json GoodTokenizer() {
  Json vocab = Json::object();
  int id = 0;
  for (const std::string& character : BytesAsCharacters()) vocab[character] = id++;
  Json merges = Json::array();
  for (const auto& [left, right] : kMerges) {
    vocab[left + right] = id++;
    merges.push_back(left + " " + right);
  }
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"added_tokens", {{{"id", id}, {"content", "<|endoftext|>"}, {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"vocab", vocab}, {"merges", merges}}}};
}

class TokenizerJsonTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TextTokenizer>> Load(const Json& json) {
    std::ofstream(dir_ / "tokenizer.json") << json.dump();
    return LoadBpe(v1::TOKENIZER_GPT2, dir_.path());
  }

  const TempDir dir_;
};

std::vector<Token> EncodeText(const TextTokenizer& tokenizer, const std::string& text) {
  std::vector<Token> tokens;
  EXPECT_OK(tokenizer.Encode(text, &tokens));
  return tokens;
}

TEST_F(TokenizerJsonTest, GivesTheTokensOfTheSameTokenizerInGpt2sFiles) {
  Json pairs = GoodTokenizer();
  pairs["model"]["merges"] = kMerges;
  const TempDir gpt2;
  Json vocab = GoodTokenizer()["model"]["vocab"];
  vocab["<|endoftext|>"] = vocab.size();
  std::ofstream(gpt2 / "vocab.json") << vocab.dump();
  std::ofstream merges(gpt2 / "merges.txt");
  for (const auto& [left, right] : kMerges) merges << left << " " << right << "\n";
  merges.close();
  const auto wanted = LoadBpe(v1::TOKENIZER_GPT2, gpt2.path());
  ASSERT_OK(wanted);
  for (const Json& json : {GoodTokenizer(), pairs}) {
    const auto tokenizer = Load(json);
    ASSERT_OK(tokenizer);
    EXPECT_EQ((*tokenizer)->vocab(), (*wanted)->vocab());
    EXPECT_EQ((*tokenizer)->separator(), (*wanted)->separator());
    for (const char* text :
         {"the the", " the\n abab ababab", "é Théâtre", "<|endoftext|>", "\xff"}) {
      EXPECT_EQ(EncodeText(**tokenizer, text), EncodeText(**wanted, text)) << text;
    }
  }
  EXPECT_EQ(EncodeText(**wanted, " the").size(), 1u);
}

TEST_F(TokenizerJsonTest, IsFoundByItsOwnNameAndByItsFolder) {
  ASSERT_OK(Load(GoodTokenizer()));
  std::filesystem::rename(dir_ / "tokenizer.json", dir_ / "mine.json");
  EXPECT_OK(LoadBpe(v1::TOKENIZER_GPT2, dir_ / "mine.json"));
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir_.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("vocab.json")));
}

TEST_F(TokenizerJsonTest, ADocumentMayBeginWithEndOfText) {
  Json json = GoodTokenizer();
  json["added_tokens"][0]["content"] = "<|end_of_text|>";
  const auto tokenizer = Load(json);
  ASSERT_OK(tokenizer);
  EXPECT_EQ((*tokenizer)->separator(), json["added_tokens"][0]["id"]);
  EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->separator()), "");
}

TEST_F(TokenizerJsonTest, WhatItDoesNotSupportIsRefusedByItsName) {
  const std::map<std::string, std::function<void(Json*)>> changes = {
      {"model.type: \"WordPiece\"", [](Json* json) { (*json)["model"]["type"] = "WordPiece"; }},
      {"model.type: null", [](Json* json) { json->erase("model"); }},
      {"model.dropout: 0.1", [](Json* json) { (*json)["model"]["dropout"] = 0.1; }},
      {"model.byte_fallback: true", [](Json* json) { (*json)["model"]["byte_fallback"] = true; }},
      {"model.ignore_merges: true", [](Json* json) { (*json)["model"]["ignore_merges"] = true; }},
      {"model.end_of_word_suffix: \"</w>\"",
       [](Json* json) { (*json)["model"]["end_of_word_suffix"] = "</w>"; }},
      {"normalizer: {\"type\":\"NFC\"}", [](Json* json) { (*json)["normalizer"]["type"] = "NFC"; }},
      {"pre_tokenizer: null", [](Json* json) { json->erase("pre_tokenizer"); }},
      {"pre_tokenizer: {\"pretokenizers\"",
       [](Json* json) {
         (*json)["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array()}};
       }},
      {"\"add_prefix_space\":true",
       [](Json* json) { (*json)["pre_tokenizer"]["add_prefix_space"] = true; }},
      {"\"use_regex\":false", [](Json* json) { (*json)["pre_tokenizer"]["use_regex"] = false; }},
      {"added_tokens: {", [](Json* json) { (*json)["added_tokens"][0]["special"] = false; }},
      {"token <|endoftext|>: duplicate id",
       [](Json* json) { (*json)["added_tokens"][0]["id"] = 7; }},
      {"has id -1", [](Json* json) { (*json)["added_tokens"][0]["id"] = -1; }},
      {"has id 1048576", [](Json* json) { (*json)["added_tokens"][0]["id"] = 1 << 20; }},
      {"263 tokens with ids up to 300", [](Json* json) { (*json)["added_tokens"][0]["id"] = 300; }},
      {"no token for byte 65", [](Json* json) { (*json)["model"]["vocab"].erase("A"); }},
      {"no token <|endoftext|>",
       [](Json* json) { (*json)["added_tokens"][0]["content"] = "<none>"; }},
      {"model.vocab: []", [](Json* json) { (*json)["model"]["vocab"] = Json::array(); }},
      {"model.merges: null", [](Json* json) { (*json)["model"].erase("merges"); }},
      {"model.merges[1]: \"a b c\"", [](Json* json) { (*json)["model"]["merges"][1] = "a b c"; }},
      {"model.merges[2]: 'a zz'", [](Json* json) { (*json)["model"]["merges"][2] = "a zz"; }}};
  for (const auto& [why, change] : changes) {
    Json json = GoodTokenizer();
    change(&json);

    EXPECT_THAT(Load(json), StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr("tokenizer.json: "), HasSubstr(why))));
  }
  for (const char* text : {"", "[]", "{\"model\"", "7"}) {
    std::ofstream(dir_ / "tokenizer.json") << text;
    EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir_.path()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a JSON object")));
  }
}

}  // namespace
}  // namespace nsa::train
