// GPT-2's byte-level BPE: the split pattern by PCRE2, merges by rank.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/data/tokenizer.h"

namespace nsa {

// Reads `vocab.json` (token text to id) and `merges.txt` (a merge a line, most wanted first) of the
// published GPT-2 tokenizer, or of one of the same form. The separator is "<|endoftext|>", which
// must be in the vocabulary. NotFound or InvalidArgument naming file and line.
absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadGpt2Bpe(const std::filesystem::path& folder);

}  // namespace nsa
