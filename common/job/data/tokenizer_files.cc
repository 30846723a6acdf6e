#include "common/job/data/tokenizer_files.h"

namespace nsa {

bool HasTokenizerFiles(v1::Tokenizer tokenizer) {
  return tokenizer == v1::TOKENIZER_GPT2 || tokenizer == v1::TOKENIZER_BPE;
}

std::vector<std::filesystem::path> TokenizerFilesOf(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path json = path / "tokenizer.json";
  const std::filesystem::path vocab = path / "vocab.json";
  if (path.extension() == ".json") return {path};
  if (exists(json, error) && !exists(vocab, error)) return {json};
  return {vocab, path / "merges.txt"};
}

}  // namespace nsa
