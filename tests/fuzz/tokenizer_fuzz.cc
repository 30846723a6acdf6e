// Any bytes as the files of a tokenizer: tokenizer.json, or vocab.json and merges.txt. What is
// accepted gives back the bytes of every text.
#include "tests/fuzz/fuzz.h"
#include "worker/train/data/tokenize/gpt2_bpe.h"

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const bool json = input.Byte() % 2 == 1;
  const std::string_view text = input.Text();
  std::filesystem::remove(nsa::fuzz::Folder() / "vocab.json");
  if (json) {
    nsa::fuzz::File("tokenizer.json", input.Rest());
  } else {
    nsa::fuzz::File("merges.txt", input.Text());
    nsa::fuzz::File("vocab.json", input.Rest());
  }
  const auto tokenizer = nsa::train::LoadGpt2Bpe(nsa::fuzz::Folder());
  RequireRefusal(tokenizer.status());
  if (tokenizer.ok()) EncodeText(**tokenizer, text);
  return 0;
}
