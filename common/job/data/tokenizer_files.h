// The files of the tokenizer that data.tokenizer_path names, and what is read of them without the
// tokenizer itself (worker/train/data/tokenize/).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// Whether a tokenizer is read from files, which data.tokenizer_path names.
bool HasTokenizerFiles(v1::Tokenizer tokenizer);

// The path itself, if it ends in .json: a tokenizer.json. Else it is a folder: of bpe its
// tokenizer.json; of gpt2 that too, if it has one and no vocab.json, or else its vocab.json and
// merges.txt, whether they exist or not.
std::vector<std::filesystem::path> TokenizerFilesOf(v1::Tokenizer tokenizer,
                                                    const std::filesystem::path& path);

// "a folder with GPT-2's vocab.json and merges.txt, or a tokenizer.json": those files in words.
std::string TokenizerFileWords(v1::Tokenizer tokenizer);

inline constexpr char kEndOfText[] = "<|endoftext|>";

// A token that may begin a document.
struct SeparatorName {
  std::string_view text;
  bool plain;  // it need not be an added token: a token of the vocabulary has no other use
};

// The first of these that a tokenizer.json has begins a document; but of one with byte_fallback the
// token that its post_processor puts before a text, if it has one.
inline constexpr SeparatorName kSeparatorNames[] = {{kEndOfText, true},
                                                    {"<|end_of_text|>", true},
                                                    {"</s>", false},
                                                    {"<eos>", false},
                                                    {"<｜end▁of▁sentence｜>", false}};

// "<|endoftext|>, <|end_of_text|>, … or …".
std::string SeparatorWords();

// What a tokenizer.json says about its tokens.
struct TokenizerFacts {
  int32_t tokens = 0;     // the largest id, and one
  std::string separator;  // the token that begins a document; empty if it has none of the names
  int32_t separator_id = -1;
  std::string end;  // the token that ends a document: the separator, where no other begins it
  int32_t end_id = -1;
  std::map<std::string, int32_t, std::less<>> special;  // the ids of the special added tokens
};

// Reads only these, in little memory. The errors of ReadJobFile() for a file of more than
// limits::kVocabularyBytes, too; InvalidArgument for one that is not JSON, an id that is not in [0,
// kMostTokens), and one without tokens; each names the file.
absl::StatusOr<TokenizerFacts> ReadTokenizerFacts(const std::filesystem::path& path);

}  // namespace nsa
