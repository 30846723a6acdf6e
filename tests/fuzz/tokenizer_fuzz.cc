// Any bytes as the files of a tokenizer: tokenizer.json, read as that of gpt2 or bpe, or vocab.json
// and merges.txt; and any bytes as the patterns and added tokens of a tokenizer.json, of bytes or
// with byte fallback. What is accepted gives back the bytes of every text, or as many times more as
// normalization, or a space in front of each stretch, may make of them; a text in parts has the
// same tokens. What preflight reads of a tokenizer.json is read too.
#include "common/base/characters/byte_characters.h"
#include "common/job/data/tokenizer_files.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz.h"
#include "worker/train/data/tokenize/ascii_split.h"
#include "worker/train/data/tokenize/bpe.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;
using Json = nlohmann::json;

namespace {

// An added token whose text normalization shortens threefold may stand for a text that it makes
// three times as long.
constexpr size_t kMostGrowth = 9;

void EncodeText(const nsa::train::TextTokenizer& tokenizer, std::string_view text, size_t growth) {
  std::vector<nsa::train::Token> tokens, in_parts;
  const absl::Status status = tokenizer.Encode(text, &tokens);
  RequireRefusal(status);
  const absl::Status parts = tokenizer.EncodeInParts(
      text,
      [&](std::span<const nsa::train::Token> part) {
        in_parts.insert(in_parts.end(), part.begin(), part.end());
        return absl::OkStatus();
      },
      nullptr);
  Require(parts == status && (!status.ok() || in_parts == tokens), "other tokens in parts");
  std::string back;
  for (const nsa::train::Token token : tokens) {
    Require(token < tokenizer.vocab(), "a token outside the vocabulary");
    back += tokenizer.Decode(token);
  }
  // A merge may give the separator, which decodes to nothing.
  Require(back.size() <= growth * text.size(), "more bytes than there were");
}

Json SplitBy(std::string_view kind, std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{std::string(kind), std::string(pattern)}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

// A tokenizer.json of bytes alone that splits by these.
Json WithSplits(Json splits) {
  Json vocab = Json::object();
  for (const std::string& character : nsa::BytesAsCharacters()) vocab[character] = vocab.size();
  splits.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"added_tokens", {{{"id", 256}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", splits}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Up to three patterns, up to three added tokens, and NFC or not.
Json WithSequence(Input* input, bool nfc) {
  const std::string_view patterns[] = {nsa::train::kThreeDigitsPattern,
                                       nsa::train::kHanAndKanaPattern, nsa::train::kDeepSeekPattern,
                                       nsa::train::kGpt2Pattern, nsa::train::kTekkenPattern};
  Json splits = Json::array();
  for (int left = input->Byte() % 4; left > 0; --left) {
    const size_t kind = input->Byte() % (std::size(patterns) + 2);
    if (kind < std::size(patterns)) {
      splits.push_back(SplitBy("Regex", patterns[kind]));
    } else {
      splits.push_back(SplitBy(kind == std::size(patterns) ? "Regex" : "String", input->Text()));
    }
  }
  Json json = WithSplits(std::move(splits));
  if (nfc) json["normalizer"] = {{"type", "NFC"}};
  for (int id = 260 + input->Byte() % 4; id > 260; --id) {
    const int flags = input->Byte();
    json["added_tokens"].push_back({{"id", id},
                                    {"content", std::string(input->Text())},
                                    {"special", flags % 4 == 0},
                                    {"normalized", flags % 2 == 1}});
  }
  return json;
}

// A tokenizer.json with byte fallback and some merges: one of the ways to write spaces, and up to
// three added tokens.
Json WithFallback(Input* input) {
  const std::string mark = "\u2581";
  const std::pair<std::string, std::string> merges[] = {
      {mark, "a"}, {"a", "b"}, {mark, "ab"}, {mark, mark}, {"b", mark}};
  Json vocab = {{"</s>", 0}, {mark, 1}, {"a", 2}, {"b", 3}, {"\u00e9", 4}};
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    vocab[std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"] = vocab.size();
  }
  Json written = Json::array();
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    written.push_back({left, right});
  }
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}};
  const Json unmark = {{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}};
  Json json = {
      {"added_tokens", {{{"id", 0}, {"content", "</s>"}, {"special", true}}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", {unmark, {{"type", "ByteFallback"}}}}}},
      {"model", {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocab}, {"merges", written}}}};
  const int spaces = input->Byte();
  const char* const schemes[] = {"always", "first", "never"};
  if (spaces % 5 == 1) json["normalizer"] = replace;
  if (spaces % 5 == 2) {
    const Json prepend = {{"type", "Prepend"}, {"prepend", mark}};
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  }
  if (spaces % 5 > 2) {
    json["pre_tokenizer"] = {{"type", "Metaspace"},
                             {"replacement", mark},
                             {"prepend_scheme", schemes[spaces % 3]},
                             {"split", spaces % 2 == 0}};
  }
  for (int id = 300 + input->Byte() % 4; id > 300; --id) {
    const int flags = input->Byte();
    json["added_tokens"].push_back({{"id", id},
                                    {"content", std::string(input->Text())},
                                    {"special", flags % 8 == 0},
                                    {"normalized", flags % 2 == 1},
                                    {"lstrip", (flags & 16) != 0},
                                    {"rstrip", (flags & 32) != 0},
                                    {"single_word", (flags & 64) != 0}});
  }
  return json;
}

void LoadAndEncode(nsa::v1::Tokenizer kind, std::string_view text, size_t growth) {
  const auto tokenizer = nsa::train::LoadBpe(kind, nsa::fuzz::Folder());
  RequireRefusal(tokenizer.status());
  if (!tokenizer.ok()) return;
  EncodeText(**tokenizer, text, growth);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const int form = input.Byte() % 7;  // 4 and 5: a sequence, without and with NFC
  const std::string_view text = input.Text();
  std::filesystem::remove(nsa::fuzz::Folder() / "vocab.json");
  if (form == 0) {
    nsa::fuzz::File("merges.txt", input.Text());
    nsa::fuzz::File("vocab.json", input.Rest());
  } else if (form < 3) {
    nsa::fuzz::File("tokenizer.json", input.Rest());
  } else {
    nsa::fuzz::File("tokenizer.json",
                    Dump(form == 3   ? WithSplits(Json::array({SplitBy("Regex", input.Rest())}))
                         : form == 6 ? WithFallback(&input)
                                     : WithSequence(&input, /*nfc=*/form == 5)));
  }
  if (form > 0) {
    RequireRefusal(nsa::ReadTokenizerFacts(nsa::fuzz::Folder() / "tokenizer.json").status());
  }
  const bool as_long = form == 0 || form == 3 || form == 4;
  LoadAndEncode(form < 2 ? nsa::v1::TOKENIZER_GPT2 : nsa::v1::TOKENIZER_BPE, text,
                as_long ? 1 : kMostGrowth);
  return 0;
}
