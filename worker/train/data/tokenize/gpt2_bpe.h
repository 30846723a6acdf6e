// Byte-level BPE as GPT-2 does it. PCRE2 splits the text into pieces; in each piece, adjacent
// tokens are merged in the order of the merges in its files.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {

// Reads the files that `path` stands for (TokenizerFilesOf()): those of the published GPT-2
// tokenizer or of one in the same format, or a tokenizer.json. The errors of bpe_files.h.
absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadGpt2Bpe(const std::filesystem::path& path);

}  // namespace nsa::train
