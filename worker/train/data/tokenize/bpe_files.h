// Reads the files of a byte-level BPE tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/train/data/tokenize/ascii_split.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {

// Texts are as the files write them (common/base/byte_characters.h); those of added tokens are as
// they are.
struct BpeFiles {
  std::unordered_map<std::string, int32_t> ids;             // each id once
  int32_t size = 0;                                         // the largest id, and one
  std::unordered_set<std::string> added;                    // tokens that no text contains
  std::vector<std::pair<std::string, std::string>> merges;  // highest priority first
  std::string separator;                                    // the token that begins a document
  std::string split{kGpt2Pattern};   // PCRE2's pattern of the pieces; empty: a text is one
  AsciiSplit ascii_split = nullptr;  // the same for ASCII, if it is well known
  bool whole_words_first = false;    // a piece that is a token becomes it without merges
};

// GPT-2's own files: `vocab.json` (token text to id) and `merges.txt` (one merge per line). The
// separator is <|endoftext|>. NotFound or InvalidArgument, naming the file and the line.
absl::StatusOr<BpeFiles> ReadGpt2Files(const std::filesystem::path& folder);

// Which tokenizer.json are read.
enum class BpeKind {
  kGpt2,  // those that split text as GPT-2 does
  kAny,   // all of byte-level BPE
};

// A tokenizer.json of Hugging Face: model BPE with a token for every byte; no normalizer; merges as
// texts or as pairs. kGpt2: pre-tokenizer ByteLevel with GPT-2's pattern and without
// add_prefix_space; each id from 0 on. kAny: also without a pattern, or Split by a pattern
// (split_pattern.h) and then ByteLevel without one; ignore_merges; ids may be left out.
//
// Added tokens must be special and are only ids: in a text their spelling is text. Truncation,
// padding, post-processor and decoder do not matter, since only the tokens of texts are wanted. The
// separator is chosen by SeparatorOf(). InvalidArgument, naming the file and the part, for anything
// else: no part is approximated. NotFound if the file is not there.
absl::StatusOr<BpeFiles> ReadTokenizerJson(const std::filesystem::path& path, BpeKind kind);

}  // namespace nsa::train
