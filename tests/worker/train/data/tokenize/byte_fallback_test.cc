// tokenizer.json with byte_fallback, as the models of SentencePiece have them: against the
// definition in plain loops, on random tokenizers and texts; and what is refused.
#include "tests/worker/train/data/tokenize/byte_fallback.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/characters/utf8.h"
#include "common/chat/render.h"
#include "common/job/data/conversations.h"
#include "common/job/data/tokenizer_files.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/data/encoder.h"
#include "worker/train/data/tokenize/bpe.h"
#include "worker/train/data/tokenize/chat_tokens.h"
#include "worker/train/score/utf8.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;
using byte_fallback::kBegin;
using byte_fallback::kEnd;
using byte_fallback::kFirstByte;
using byte_fallback::kMark;
using byte_fallback::Merges;
using byte_fallback::Tokenizer;

const Json kPrependAndReplace = {
    {"type", "Sequence"},
    {"normalizers",
     {{{"type", "Prepend"}, {"prepend", kMark}},
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMark}}}}};

Json Metaspace(const std::string& scheme, bool split) {
  return {
      {"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", scheme}, {"split", split}};
}

std::vector<std::string> CharactersOf(std::string_view text) {
  std::vector<std::string> characters;
  while (!text.empty()) {
    const size_t bytes = std::max<size_t>(1, FirstUtf8(text).bytes);
    characters.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return characters;
}

// The definition, in plain loops.
class Reference {
 public:
  Reference(const Json& json, const Merges& merges) : json_(json), merges_(merges) {}

  std::vector<Token> Encode(const std::string& text) const {
    std::vector<Token> tokens;
    bool first = true;
    for (size_t at = 0; at < text.size();) {
      // The next added token that is not special: the longest at the first place.
      size_t found = text.size();
      const Json* token = nullptr;
      for (const Json& added : json_["added_tokens"]) {
        if (added["special"] == true) continue;
        const auto content = added["content"].get<std::string>();
        const size_t place = text.find(content, at);
        if (place > found || place == std::string::npos) continue;
        const bool longer =
            token == nullptr || content.size() > (*token)["content"].get<std::string>().size();
        if (place < found || longer) token = &added;
        found = place;
      }
      if (found > at) EncodeStretch(text.substr(at, found - at), first, &tokens);
      first = false;
      at = found;
      if (token == nullptr) continue;
      tokens.push_back((*token)["id"].get<int32_t>());
      at += (*token)["content"].get<std::string>().size();
    }
    return tokens;
  }

 private:
  void EncodeStretch(std::string text, bool first, std::vector<Token>* tokens) const {
    const Json& pre = json_["pre_tokenizer"];
    const bool normal = !json_["normalizer"].is_null();
    if (normal) text = kMark + text;
    std::string marked;
    for (const char c : text)
      marked += c == ' ' && (normal || !pre.is_null()) ? kMark : std::string(1, c);
    if (!pre.is_null() && !marked.starts_with(kMark) &&
        (pre["prepend_scheme"] == "always" || (pre["prepend_scheme"] == "first" && first))) {
      marked = kMark + marked;
    }
    std::vector<std::string> piece;
    for (const std::string& c : CharactersOf(marked)) {
      if (c == kMark && !pre.is_null() && pre["split"] == true)
        Merge(std::exchange(piece, {}), tokens);
      piece.push_back(c);
    }
    Merge(std::move(piece), tokens);
  }

  void Merge(const std::vector<std::string>& characters, std::vector<Token>* tokens) const {
    const Json& vocab = json_["model"]["vocab"];
    std::vector<std::string> parts;
    for (const std::string& c : characters) {
      if (vocab.contains(c)) {
        parts.push_back(c);
        continue;
      }
      for (const char byte : c) {
        parts.push_back(absl::StrFormat("<0x%02X>", static_cast<unsigned char>(byte)));
      }
    }
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& [left, right] : merges_) {  // by rank, then from the left
        for (size_t i = 0; i + 1 < parts.size() && !merged; ++i) {
          if (parts[i] != left || parts[i + 1] != right) continue;
          parts[i] += right;
          parts.erase(parts.begin() + static_cast<ptrdiff_t>(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
    for (const std::string& part : parts) tokens->push_back(vocab[part].get<int32_t>());
  }

  const Json& json_;
  const Merges& merges_;
};

class ByteFallbackTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TextTokenizer>> Load(const Json& json) {
    std::ofstream(dir_ / "tokenizer.json") << json.dump();
    return LoadBpe(v1::TOKENIZER_BPE, dir_.path());
  }
  std::vector<Token> Encode(const Json& json, const std::string& text,
                            TextPlace place = TextPlace::kFirst) {
    const auto tokenizer = Load(json);
    EXPECT_OK(tokenizer);
    std::vector<Token> tokens;
    if (!tokenizer.ok()) return tokens;
    EXPECT_OK((*tokenizer)->Encode(text, &tokens, nullptr, place));
    return tokens;
  }

  const TempDir dir_;
};

std::string DecodeAll(const TextTokenizer& tokenizer, const std::vector<Token>& tokens) {
  std::string text;
  for (const Token token : tokens) text += tokenizer.Decode(token);
  return text;
}

const std::vector<std::string> kLetters = {kMark, "a", "b", "é", "日", ".", " "};
const Merges kSome = {{"a", "b"}, {kMark, "a"}, {kMark, "ab"}, {"é", "a"}, {kMark, kMark}};

// Of kLetters and kSome: ▁ 259, a 260, b 261, é 262, 日 263, ab 266, ▁a 267, ▁ab 268, éa 269, ▁▁
// 270.
TEST_F(ByteFallbackTest, TokensOfAHandMadeTokenizer) {
  Json json = Tokenizer(kLetters, kSome);
  json["normalizer"] = kPrependAndReplace;
  EXPECT_THAT(Encode(json, "ab ab"), ElementsAre(268, 268));
  EXPECT_THAT(Encode(json, " a"), ElementsAre(259, 267));  // ▁▁a: (▁, a) is first
  EXPECT_THAT(Encode(json, "  "), ElementsAre(270, 259));
  EXPECT_THAT(Encode(json, "\n😀"), ElementsAre(259, 13, 243, 162, 155, 131));
  EXPECT_THAT(Encode(json, "<s>"), testing::Not(ElementsAre(kBegin)));  // is text
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = Metaspace("first", false);
  EXPECT_THAT(Encode(json, " ab"), ElementsAre(268));
  EXPECT_THAT(Encode(json, "ab"), ElementsAre(268));
  EXPECT_THAT(Encode(json, "ab", TextPlace::kBehind), ElementsAre(266));
  json["pre_tokenizer"] = Metaspace("always", true);
  EXPECT_THAT(Encode(json, "ab", TextPlace::kBehind), ElementsAre(268));
  EXPECT_THAT(Encode(json, "ab", TextPlace::kWithin), ElementsAre(266));
  EXPECT_THAT(Encode(json, "b  "), ElementsAre(259, 261, 259, 259));  // each ▁ begins a piece
}

// The characters of random texts: letters, spaces, and some without a token.
std::string RandomText(std::mt19937* random) {
  const std::vector<std::string> characters = {"a",  "b", "é",   "日", ".",   " ", " ",
                                               "\n", "😀", kMark, "x",  "<+>", "<+"};
  std::string text;
  for (unsigned left = (*random)() % 40; left > 0; --left) {
    text += characters[(*random)() % characters.size()];
  }
  return text;
}

Merges RandomMerges(std::mt19937* random) {
  std::vector<std::string> tokens = {kMark, "a", "b", "é", "日", "."};
  Merges merges;
  for (int i = 0; i < 25; ++i) {
    const std::pair<std::string, std::string> merge = {tokens[(*random)() % tokens.size()],
                                                       tokens[(*random)() % tokens.size()]};
    if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
    merges.push_back(merge);
    tokens.push_back(merge.first + merge.second);
  }
  return merges;
}

TEST_F(ByteFallbackTest, GivesTheTokensOfTheDefinition) {
  std::mt19937 random(20261129);
  for (int round = 0; round < 60; ++round) {
    const Merges merges = RandomMerges(&random);
    Json json = Tokenizer({kMark, "a", "b", "é", "日", "."}, merges);
    const char* const schemes[] = {"always", "first", "never"};
    if (round % 4 == 0) {
      json["normalizer"] = kPrependAndReplace;
    } else {
      json["pre_tokenizer"] = Metaspace(schemes[round % 3], round % 2 == 0);
    }
    if (round % 5 == 0) {
      for (const char* text : {"<+>", "a.", "<+"}) {
        const int32_t other = 5000 + static_cast<int32_t>(json["added_tokens"].size());
        json["added_tokens"].push_back({{"id", json["model"]["vocab"].value(text, other)},
                                        {"content", text},
                                        {"special", false},
                                        {"normalized", false}});
      }
    }
    const auto tokenizer = Load(json);
    ASSERT_OK(tokenizer);
    const Reference reference(json, merges);
    for (int i = 0; i < 40; ++i) {
      const std::string text = RandomText(&random);
      std::vector<Token> tokens;
      ASSERT_OK((*tokenizer)->Encode(text, &tokens));
      ASSERT_EQ(tokens, reference.Encode(text)) << round << ": " << text;
    }
  }
}

TEST_F(ByteFallbackTest, GivesBackTheTextBehindASpace) {
  Json json = Tokenizer(kLetters, kSome);
  json["normalizer"] = kPrependAndReplace;
  const auto tokenizer = Load(json);
  ASSERT_OK(tokenizer);
  for (const std::string text : {"ab  é日\n", "😀 \xff.", "</s> <0x0A>"}) {
    std::vector<Token> tokens;
    ASSERT_OK((*tokenizer)->Encode(text, &tokens));
    EXPECT_EQ(DecodeAll(**tokenizer, tokens), " " + text);
  }
}

// A stream shows a character of several tokens when it has the last of them.
TEST_F(ByteFallbackTest, AStreamNeverShowsAPartOfACharacter) {
  const auto tokenizer = Load(Tokenizer(kLetters, kSome));
  ASSERT_OK(tokenizer);
  std::vector<Token> tokens;
  ASSERT_OK((*tokenizer)->Encode("a😀b", &tokens));
  ASSERT_EQ(tokens.size(), 6u);
  std::string bytes;
  std::vector<size_t> settled;
  for (const Token token : tokens) {
    bytes += (*tokenizer)->Decode(token);
    settled.push_back(SettledUtf8(bytes));
  }
  EXPECT_THAT(settled, ElementsAre(1, 1, 1, 1, 5, 6));
}

// Ten megabytes of short words, and two million spaces, which are one word for the merges.
TEST_F(ByteFallbackTest, LongTextsTakeTimeInProportion) {
  Json json = Tokenizer(kLetters, kSome);
  json["pre_tokenizer"] = Metaspace("first", false);
  const auto tokenizer = Load(json);
  ASSERT_OK(tokenizer);
  std::string words;
  const std::string word(2'000'000, ' ');
  while (words.size() < 10'000'000) words += "ab é.a日 ";
  for (const std::string& text : {words, word}) {
    const auto begun = std::chrono::steady_clock::now();
    std::vector<Token> tokens;
    ASSERT_OK((*tokenizer)->Encode(text, &tokens));
    EXPECT_GT(tokens.size(), text.size() / 4);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
  }
}

TEST_F(ByteFallbackTest, TheTokenOfThePostProcessorBeginsADocument) {
  Json json = Tokenizer(kLetters, kSome);
  const auto separator = [&] {
    const auto tokenizer = Load(json);
    EXPECT_OK(tokenizer);
    const auto facts = ReadTokenizerFacts(dir_ / "tokenizer.json");
    EXPECT_OK(facts);
    EXPECT_EQ(facts->separator_id, (*tokenizer)->separator());
    EXPECT_EQ(facts->end_id, kEnd);
    return (*tokenizer)->separator();
  };
  EXPECT_EQ(separator(), kBegin);
  json["post_processor"] = {{"type", "Sequence"},
                            {"processors", {{{"type", "ByteLevel"}}, json["post_processor"]}}};
  EXPECT_EQ(separator(), kBegin);
  Json& parts = json["post_processor"]["processors"][1]["single"];
  std::swap(parts[0], parts[1]);  // behind a text
  EXPECT_EQ(separator(), kEnd);
  json["post_processor"] = nullptr;
  EXPECT_EQ(separator(), kEnd);
}

TEST_F(ByteFallbackTest, AConversationInTokens) {
  Json json = Tokenizer(kLetters, kSome);
  json["pre_tokenizer"] = Metaspace("first", false);
  const auto tokenizer = Load(json);
  ASSERT_OK(tokenizer);
  const std::vector<ChatPiece> pieces = {{.text = "<s>", .control = true},
                                         {.text = "[x]", .control = true},  // no token: text
                                         {.text = "a</s>"},
                                         {.text = " ab", .answer = true},
                                         {.text = "</s>", .control = true, .answer = true}};
  std::vector<Token> tokens;
  std::vector<bool> answers;
  ASSERT_OK(EncodeChat(
      **tokenizer, pieces,
      [&](std::span<const Token> part, bool answer) {
        tokens.insert(tokens.end(), part.begin(), part.end());
        answers.resize(tokens.size(), answer);
        return absl::OkStatus();
      },
      nullptr));
  std::vector<Token> text;
  ASSERT_OK((*tokenizer)->Encode("[x]a</s>", &text, nullptr, TextPlace::kBehind));
  std::vector<Token> wanted = {kBegin};
  wanted.insert(wanted.end(), text.begin(), text.end());
  wanted.insert(wanted.end(), {268, kEnd});
  EXPECT_EQ(tokens, wanted);
  std::vector<bool> learned(wanted.size() - 2, false);
  learned.insert(learned.end(), 2, true);
  EXPECT_EQ(answers, learned);
}

// The published text of a conversation, whose last answer is not there in a prompt (render.py).
std::string Published(const std::string& format, bool prompt) {
  std::ifstream file(fs::path(SourceDir()) / "tests/common/chat/templates/rendered.json");
  return Json::parse(file)[format][prompt ? 2 : 0].get<std::string>();
}
const std::vector<ChatMessage> kTalk = {
    {"user", "Hi"}, {"assistant", "Hello!"}, {"user", " Why? "}, {"assistant", "Because.\n"}};

TEST_F(ByteFallbackTest, AConversationHasItsBeginningOfTextOnce) {
  Json json = Tokenizer(kLetters, kSome);
  json["pre_tokenizer"] = Metaspace("first", false);
  const auto tokenizer = Load(json);
  ASSERT_OK(tokenizer);
  const auto spelled = [&](const std::vector<Token>& tokens) {
    std::string text;
    for (const Token token : tokens) {
      const Token plain = WithoutMarks(token);
      text += plain == kBegin ? "<s>" : (*tokenizer)->Decode(plain);
    }
    return text;
  };
  v1::DataSpec data;
  data.set_source(v1::DATA_SOURCE_JSONL);
  data.set_tokenizer(v1::TOKENIZER_BPE);
  data.set_tokenizer_path((dir_ / "tokenizer.json").string());
  data.set_loss_on(v1::LOSS_ON_ASSISTANT);
  for (const std::string name : {"llama2", "mistral_v0_1", "mistral_v0_2", "qwen2"}) {
    SCOPED_TRACE(name);
    fs::copy_file(fs::path(SourceDir()) / "tests/common/chat/templates" / (name + ".jinja"),
                  dir_ / "chat_template.jinja", fs::copy_options::overwrite_existing);
    // Its template prints none, and a text that is first gets a space.
    const std::string front = name == "qwen2" ? "<s> " : "";
    const auto encoder = DocumentEncoder::Make(data, (*tokenizer)->vocab());
    ASSERT_OK(encoder);
    std::vector<Token> learned;
    ASSERT_OK(encoder->Encode(Document{.messages = kTalk}, &learned, nullptr));
    EXPECT_EQ(spelled(learned), front + Published(name, false));
    EXPECT_EQ(learned[0], kBegin | kBeginMark);

    const auto format = ChatFormatOf(data);
    ASSERT_OK(format);
    const auto pieces = RenderPrompt(*format, std::span(kTalk).first(3));
    ASSERT_OK(pieces);
    std::vector<Token> prompt;
    ASSERT_OK(EncodeChat(
        **tokenizer, *pieces,
        [&](std::span<const Token> part, bool) {
          prompt.insert(prompt.end(), part.begin(), part.end());
          return absl::OkStatus();
        },
        nullptr));
    EXPECT_EQ(spelled(prompt), front + Published(name, true));
    ASSERT_LT(prompt.size(), learned.size());
    for (size_t i = 0; i < prompt.size(); ++i) EXPECT_EQ(prompt[i], WithoutMarks(learned[i])) << i;
  }
}

TEST_F(ByteFallbackTest, AnythingElseIsRefusedByItsKey) {
  const struct {
    const char* pointer;
    Json value;
    const char* error;
  } cases[] = {
      {"/normalizer", {{"type", "Lowercase"}}, "normalizer: "},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", kMark}}, "normalizer: "},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", "x"}}, "normalizer: "},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer: "},
      {"/pre_tokenizer", Metaspace("sometimes", true), "pre_tokenizer: "},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", kMark}, {"add_prefix_space", false}},
       "pre_tokenizer: "},
      {"/pre_tokenizer/type", "Split", "pre_tokenizer: "},
      {"/decoder", nullptr, "decoder: "},
      {"/decoder", {{"type", "ByteFallback"}}, "decoder: "},
      {"/decoder/decoders/0/content", "_", "decoder: "},
      {"/model/ignore_merges", true, "model.ignore_merges: "},
      {"/model/byte_fallback", 3, "model.byte_fallback: "},
      {"/model/merges/0", "<0x0A> a", "model.merges[0]: "},
      {"/added_tokens/0/lstrip", 3, "added_tokens: lstrip: "},
  };
  for (const auto& c : cases) {
    Json json = Tokenizer(kLetters, kSome);
    json[Json::json_pointer(c.pointer)] = c.value;
    EXPECT_THAT(Load(json), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.error)))
        << c.pointer << c.value;
  }
  Json json = Tokenizer(kLetters, kSome);
  json["model"]["vocab"].erase("<0x0A>");
  EXPECT_THAT(Load(json),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no token for byte 10")));
}

}  // namespace
}  // namespace nsa::train
