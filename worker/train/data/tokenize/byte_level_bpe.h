// Byte-level BPE. A pattern splits the text into pieces; in each piece, adjacent tokens, at first
// one for each byte, are merged in the order of the merges of the tokenizer's files.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {

// Reads the files that `path` stands for (TokenizerFilesOf()). `tokenizer` is TOKENIZER_GPT2 for
// those of the published GPT-2 tokenizer or of one that splits text in the same way, or
// TOKENIZER_BPE for any tokenizer.json of byte-level BPE. The errors of bpe_files.h.
absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadByteLevelBpe(v1::Tokenizer tokenizer,
                                                                const std::filesystem::path& path);

}  // namespace nsa::train
