// Reads the files of a byte-level BPE tokenizer that splits text as GPT-2 does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace nsa::train {

inline constexpr size_t kMostTokens = 65536;

// Texts are as the files write them (common/base/byte_characters.h).
struct BpeFiles {
  std::unordered_map<std::string, int32_t> ids;             // of 0 … size − 1, each once
  std::vector<std::pair<std::string, std::string>> merges;  // highest priority first
  std::string separator;                                    // the token that begins a document
};

// GPT-2's own files: `vocab.json` (token text to id) and `merges.txt` (one merge per line). The
// separator is <|endoftext|>. NotFound or InvalidArgument, naming the file and the line.
absl::StatusOr<BpeFiles> ReadGpt2Files(const std::filesystem::path& folder);

// A tokenizer.json of Hugging Face: model BPE; pre-tokenizer ByteLevel with GPT-2's pattern and
// without add_prefix_space; no normalizer; merges as texts or as pairs. Added tokens must be
// special and are only ids: in a text their spelling is text. Truncation, padding, post-processor
// and decoder do not matter, since only the tokens of texts are wanted. The separator is
// <|endoftext|>, or else <|end_of_text|>. InvalidArgument, naming the file and the part, for
// anything else: no part is approximated. NotFound if the file is not there.
absl::StatusOr<BpeFiles> ReadTokenizerJson(const std::filesystem::path& path);

}  // namespace nsa::train
