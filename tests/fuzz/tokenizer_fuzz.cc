// Any bytes as the files of a tokenizer: tokenizer.json, read as that of gpt2 or bpe, or vocab.json
// and merges.txt; and any bytes as the pattern of a tokenizer.json. What is accepted gives back the
// bytes of every text. What preflight reads of a tokenizer.json is read too.
#include "common/base/byte_characters.h"
#include "common/job/data/tokenizer_files.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz.h"
#include "worker/train/data/tokenize/byte_level_bpe.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

void EncodeText(const nsa::train::TextTokenizer& tokenizer, std::string_view text) {
  std::vector<nsa::train::Token> tokens;
  RequireRefusal(tokenizer.Encode(text, &tokens));
  std::string back;
  for (const nsa::train::Token token : tokens) {
    Require(token < tokenizer.vocab(), "a token outside the vocabulary");
    back += tokenizer.Decode(token);
  }
  // A merge may give the separator, which decodes to nothing.
  Require(back.size() <= text.size(), "more bytes than there were");
}

// A tokenizer.json of bytes alone that splits by this pattern.
std::string WithPattern(std::string_view pattern) {
  nlohmann::json vocab = nlohmann::json::object();
  for (const std::string& character : nsa::BytesAsCharacters()) vocab[character] = vocab.size();
  const nlohmann::json split = {{"type", "Split"},
                                {"pattern", {{"Regex", pattern}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
  const nlohmann::json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const nlohmann::json json = {
      {"added_tokens", {{{"id", 256}, {"content", "<|endoftext|>"}, {"special", true}}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void LoadAndEncode(nsa::v1::Tokenizer kind, std::string_view text) {
  const auto tokenizer = nsa::train::LoadByteLevelBpe(kind, nsa::fuzz::Folder());
  RequireRefusal(tokenizer.status());
  if (!tokenizer.ok()) return;
  EncodeText(**tokenizer, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const int form = input.Byte() % 4;
  const std::string_view text = input.Text();
  std::filesystem::remove(nsa::fuzz::Folder() / "vocab.json");
  if (form == 0) {
    nsa::fuzz::File("merges.txt", input.Text());
    nsa::fuzz::File("vocab.json", input.Rest());
  } else {
    nsa::fuzz::File("tokenizer.json", form == 3 ? WithPattern(input.Rest()) : input.Rest());
  }
  if (form > 0) {
    RequireRefusal(nsa::ReadTokenizerFacts(nsa::fuzz::Folder() / "tokenizer.json").status());
  }
  LoadAndEncode(form < 2 ? nsa::v1::TOKENIZER_GPT2 : nsa::v1::TOKENIZER_BPE, text);
  return 0;
}
