// Reads the files of a BPE tokenizer.
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
  bool normalized = false;   // looked for in the normalized text
  bool lstrip = false;       // it takes the white space before it
  bool rstrip = false;       // and behind it
  bool single_word = false;  // only where no word goes on at either end
};

// How spaces are written (text/spaces.h).
enum class SpaceMarks {
  kNone,     // as spaces
  kMarks,    // as marks
  kEach,     // and each stretch of text between added tokens has one in front
  kEachOwn,  // the same, unless it begins with one
  kFirst,    // and a text, unless it begins with one
};

// Texts are as the files write them, of byte-level BPE in the characters of
// common/base/characters/byte_characters.h; those of added tokens are as they are.
struct BpeFiles {
  std::unordered_map<std::string, int32_t> ids;             // each id once
  int32_t size = 0;                                         // the largest id, and one
  std::vector<AddedToken> added;                            // in the order of the file
  std::unordered_set<std::string> added_texts;              // theirs, and the separator
  std::vector<std::pair<std::string, std::string>> merges;  // highest priority first
  std::string separator;                                    // the token that begins a document
  bool byte_fallback = false;                               // tokens are characters, else bytes
  bool nfc = false;                                         // texts are normalized to NFC first
  SpaceMarks normal_spaces = SpaceMarks::kNone;             // then this; kNone, kMarks or kEach
  SpaceMarks spaces = SpaceMarks::kNone;                    // after added tokens are cut out
  bool split_before_marks = false;                          // each begins a piece
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
  kAny,   // all of byte-level BPE and of BPE with byte fallback
};

// A tokenizer.json of Hugging Face: model BPE; merges as texts or as pairs.
//
// kGpt2: a token for every byte; no normalizer; pre-tokenizer ByteLevel with GPT-2's pattern and
// without add_prefix_space; added tokens that are special; each id from 0 on.
//
// kAny: any added tokens; ids may be left out. Also normalizer NFC, the pre-tokenizers of
// pre_tokenizer_json.h, ignore_merges. Or byte_fallback, as the models of SentencePiece have it
// (Llama 2, Mistral, TinyLlama, Gemma): a token <0x00> … for every byte, and then
//   normalizer     NFC; Replace of " " by "▁"; Prepend of "▁" beside it; a Sequence of these
//   pre_tokenizer  none; Metaspace with any prepend_scheme, with or without split; Split at " "
//                  where the normalizer has left none
//   decoder        a Sequence of Replace of "▁" by " " or Metaspace, ByteFallback, and perhaps Fuse
//                  and Strip of a space
//   merges         not of the tokens of bytes
//   model          any unk_token and fuse_unk, which no text needs
//
// Special tokens are only ids: in a text their spelling is text. Truncation and padding do not
// matter, since only the tokens of texts are wanted. The separator is the first of kSeparatorNames;
// with byte_fallback the token that the post_processor (TemplateProcessing) puts before a text
// comes first. InvalidArgument, naming the file and the part, for anything else: no part is
// approximated. NotFound if the file is not there.
absl::StatusOr<BpeFiles> ReadTokenizerJson(const std::filesystem::path& path, BpeKind kind);

}  // namespace nsa::train
