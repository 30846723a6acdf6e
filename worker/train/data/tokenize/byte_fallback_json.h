// Reads what is particular to a tokenizer.json with byte_fallback, as the models of SentencePiece
// are published.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/tokenize/bpe_files.h"

namespace nsa::train {

// Reads normalizer and pre_tokenizer into `files`, and checks that the decoder gives back what
// these make of a text. bpe_files.h lists what they may be. InvalidArgument, naming the file at
// `path` and the part, for anything else.
absl::Status ReadByteFallback(const std::filesystem::path& path, const nlohmann::json& tokenizer,
                              BpeFiles* files);

// The parts of a Sequence, which are in its member `name`; of another part, that part; of null,
// none.
nlohmann::json PartsOf(const nlohmann::json& part, const char* name);

// The token that the post_processor, a TemplateProcessing or a Sequence with one, puts before a
// single text; empty if there is none.
std::string BeginOfTexts(const nlohmann::json& tokenizer);

}  // namespace nsa::train
