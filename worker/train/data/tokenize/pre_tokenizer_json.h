// Reads the part of a tokenizer.json that says how a text is divided.
#pragma once

#include <filesystem>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/tokenize/bpe_files.h"

namespace nsa::train {

// The most pre-tokenizers of a Sequence.
inline constexpr size_t kMostSplits = 16;

// Whether `part` is ByteLevel without add_prefix_space; with GPT-2's pattern if `own_pattern`.
bool IsByteLevel(const nlohmann::json& part, bool own_pattern);

// The steps of `pre_tokenizer`: ByteLevel, or a Sequence that ends with it, in which each divides
// the pieces of the one before. Before ByteLevel may stand
//   Split   by a Regex (split_pattern.h) or a String, with behavior Isolated; Removed with invert,
//           if the pattern is one of ascii_split.h that leaves nothing out
//   Digits  \p{N}+, or each \p{N} by itself
// InvalidArgument, naming the file at `path` and the part, for anything else.
//
// That of a tokenizer.json with byte_fallback is read by byte_fallback_json.h.
absl::StatusOr<std::vector<SplitStep>> ReadPreTokenizer(const std::filesystem::path& path,
                                                        const nlohmann::json& pre_tokenizer);

}  // namespace nsa::train
