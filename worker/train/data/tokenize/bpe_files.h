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

// How a text, or a piece of one, is divided.
struct SplitStep {
  std::string pattern;         // of the pieces, in the syntax of PCRE2
  AsciiSplit ascii = nullptr;  // the same for ASCII, if it is well known
};

// An entry of added_tokens.
struct AddedToken {
  std::string text;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;  // looked for in the normalized text
};

// Texts are as the files write them (common/base/characters/byte_characters.h); those of added
// tokens are as they are.
struct BpeFiles {
  std::unordered_map<std::string, int32_t> ids;             // each id once
  int32_t size = 0;                                         // the largest id, and one
  std::vector<AddedToken> added;                            // in the order of the file
  std::unordered_set<std::string> added_texts;              // theirs, and the separator
  std::vector<std::pair<std::string, std::string>> merges;  // highest priority first
  std::string separator;                                    // the token that begins a document
  bool nfc = false;                                         // texts are normalized to NFC first
  std::vector<SplitStep> split;    // each divides the pieces of the one before; none: one piece
  bool whole_words_first = false;  // a piece that is a token becomes it without merges
};

// The step of a pattern that AsciiSplitOf() knows.
SplitStep KnownSplit(std::string_view pattern);

// GPT-2's own files: `vocab.json` (token text to id) and `merges.txt` (one merge per line). The
// separator is <|endoftext|>. NotFound or InvalidArgument, naming the file and the line.
absl::StatusOr<BpeFiles> ReadGpt2Files(const std::filesystem::path& folder);

// Which tokenizer.json are read.
enum class BpeKind {
  kGpt2,  // those that split text as GPT-2 does
  kAny,   // all of byte-level BPE
};

// A tokenizer.json of Hugging Face: model BPE with a token for every byte; merges as texts or as
// pairs. kGpt2: no normalizer; pre-tokenizer ByteLevel with GPT-2's pattern and without
// add_prefix_space; added tokens that are special; each id from 0 on. kAny: also normalizer NFC,
// the pre-tokenizers of pre_tokenizer_json.h, ignore_merges, any added tokens without lstrip,
// rstrip and single_word; ids may be left out.
//
// Special tokens are only ids: in a text their spelling is text. Truncation, padding,
// post-processor and decoder do not matter, since only the tokens of texts are wanted. The
// separator is the first of kSeparatorNames. InvalidArgument, naming the file and the part, for
// anything else: no part is approximated. NotFound if the file is not there.
absl::StatusOr<BpeFiles> ReadTokenizerJson(const std::filesystem::path& path, BpeKind kind);

}  // namespace nsa::train
