// GPT-2's byte-level BPE. PCRE2 splits the text into pieces; in each piece, adjacent tokens are
// merged in the order of the ranks in merges.txt.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {

// Reads `vocab.json` (token text to id) and `merges.txt` (one merge per line, highest priority
// first) of the published GPT-2 tokenizer or of one in the same format. The separator is
// "<|endoftext|>", which must be in the vocabulary. NotFound or InvalidArgument, naming the file
// and the line.
absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadGpt2Bpe(const std::filesystem::path& folder);

}  // namespace nsa::train
