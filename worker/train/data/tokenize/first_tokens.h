// The tokens with which the merging of a piece of text begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data/tokenize/bpe_files.h"

namespace nsa::train {

// Immutable; threads may share one.
class FirstTokens {
 public:
  // Those of the files. They are bytes, or characters if files.byte_fallback.
  static std::unique_ptr<const FirstTokens> Of(const BpeFiles& files);

  virtual ~FirstTokens() = default;

  // Appends those of a piece. InvalidArgument for a byte that has no token.
  virtual absl::Status Append(std::string_view piece, std::vector<int32_t>* ids) const = 0;

  // The end of the first word of a piece, which is not empty: no merge reaches across it, so words
  // are merged one by one. It is above 0.
  virtual size_t WordEnd(std::string_view piece) const = 0;

  // What a piece has to be to become a token of the files; nothing if no piece is.
  virtual std::optional<std::string> PieceOf(const std::string& token) const = 0;

  // The bytes of text that a token of the files stands for.
  virtual std::string Decoded(const std::string& token, bool added) const = 0;
};

}  // namespace nsa::train
