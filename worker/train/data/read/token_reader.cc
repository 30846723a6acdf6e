#include "worker/train/data/read/token_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/little_endian.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

constexpr int64_t kChunk = 1 << 20;  // bytes

int64_t TokenAt(std::string_view bytes, const TokenLayout& layout) {
  if (layout.width == 1) return static_cast<uint8_t>(bytes[0]);
  if (layout.width == 2 && layout.is_signed) return LittleEndian<int16_t>(bytes);
  if (layout.width == 2) return LittleEndian<uint16_t>(bytes);
  if (layout.width == 4 && layout.is_signed) return LittleEndian<int32_t>(bytes);
  if (layout.width == 4) return LittleEndian<uint32_t>(bytes);
  return LittleEndian<int64_t>(bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenReader>> TokenReader::Open(const std::filesystem::path& path,
                                                               ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, progress));
  NSA_ASSIGN_OR_RETURN(TokenLayout layout, FindTokens(file, path, progress));
  file.ExpectUpTo(file.size());
  return std::unique_ptr<TokenReader>(new TokenReader(std::move(file), std::move(layout)));
}

absl::StatusOr<std::span<const Token>> TokenReader::Ahead() {
  if (used_ == tokens_.size() && position_ < layout_.count) NSA_RETURN_IF_ERROR(Refill());
  return std::span<const Token>(tokens_).subspan(used_);
}

void TokenReader::Skip(int64_t count) {
  position_ += count;
  used_ += static_cast<size_t>(count);
}

void TokenReader::Seek(int64_t position) {
  position_ = position;
  tokens_.clear();
  used_ = 0;
}

absl::Status TokenReader::Refill() {
  const int64_t count = std::min(kChunk / layout_.width, layout_.count - position_);
  bytes_.resize(static_cast<size_t>(count * layout_.width));
  const int64_t offset = layout_.offset + position_ * layout_.width;
  NSA_RETURN_IF_ERROR(file_.ReadAt(offset, bytes_));
  tokens_.clear();
  used_ = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t byte = i * layout_.width;
    const int64_t token =
        TokenAt(std::string_view(bytes_).substr(static_cast<size_t>(byte)), layout_);
    if (token < 0 || token >= kMostTokens) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: token %d, at byte %d: %d (from 0 to %d); use the tokens of a tokenizer with at most "
          "1,048,576",
          file_.name(), position_ + i, offset + byte, token, kMostTokens - 1));
    }
    tokens_.push_back(static_cast<Token>(token));
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
