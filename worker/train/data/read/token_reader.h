// Reads the tokens of a token file in order, in any of the formats of token_layout.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data/token_layout.h"
#include "worker/train/data/read/data_file.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {

// Memory: 1 MiB, the tokens in it at 4 bytes each, and the layout.
class TokenReader {
 public:
  // The errors of DataFile::Open() and FindTokens(). `progress` must outlive the reader.
  static absl::StatusOr<std::unique_ptr<TokenReader>> Open(const std::filesystem::path& path,
                                                           ReadProgress* progress);

  const TokenLayout& layout() const { return layout_; }

  // Index of the next token, from 0 to layout().count.
  int64_t position() const { return position_; }

  // The next tokens, as many as are in memory; none only at the end. Valid until Skip().
  // InvalidArgument for a token that is not in [0, kMostTokens), DataLoss, Cancelled; each names
  // the file.
  absl::StatusOr<std::span<const Token>> Ahead();

  // Goes on by `count` tokens, at most as many as the last Ahead() returned.
  void Skip(int64_t count);

  // Goes to a token, from 0 to layout().count, without reading those before it.
  void Seek(int64_t position);

 private:
  TokenReader(DataFile file, TokenLayout layout)
      : file_(std::move(file)), layout_(std::move(layout)) {}
  absl::Status Refill();

  const DataFile file_;
  const TokenLayout layout_;
  int64_t position_ = 0;
  std::string bytes_;
  std::vector<Token> tokens_;  // converted from bytes_
  size_t used_ = 0;            // of tokens_
};

}  // namespace nsa::train
