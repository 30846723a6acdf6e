// Byte-pair encoding. A text is divided into pieces; in each piece, adjacent tokens are merged in
// the order of the merges of the tokenizer's files. At first there is a token for each byte
// (byte-level BPE), or for each character and for the bytes of characters without one (BPE with
// byte fallback, as SentencePiece writes it).
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {

// Reads the files that `path` stands for (TokenizerFilesOf()). `tokenizer` is TOKENIZER_GPT2 for
// those of the published GPT-2 tokenizer or of one that splits text in the same way, or
// TOKENIZER_BPE for any tokenizer.json of both kinds. The errors of bpe_files.h.
absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadBpe(v1::Tokenizer tokenizer,
                                                       const std::filesystem::path& path);

}  // namespace nsa::train
