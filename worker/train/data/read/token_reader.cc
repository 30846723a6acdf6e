#include "worker/train/data/read/token_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/data/url.h"

namespace nsa::train {
namespace {

constexpr int64_t kChunk = 1 << 20;  // bytes

// The index beside a Megatron file; nothing for another file.
absl::StatusOr<std::optional<DataFile>> OpenIndex(const std::filesystem::path& path,
                                                  ReadProgress* progress) {
  const std::optional<std::filesystem::path> name = IndexNameOf(path);
  if (!name) return std::nullopt;
  absl::StatusOr<DataFile> index = DataFile::Open(*name, progress);
  if (absl::IsNotFound(index.status())) return std::nullopt;
  NSA_RETURN_IF_ERROR(index.status());
  return *std::move(index);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenReader>> TokenReader::Open(const std::filesystem::path& path,
                                                               ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, progress));
  const absl::StatusOr<std::optional<DataFile>> index = OpenIndex(path, progress);
  // A store whose keys may not be listed answers so for an object that is not there, too.
  const bool unknown = IsUrl(path.string()) && absl::IsPermissionDenied(index.status());
  if (!unknown) NSA_RETURN_IF_ERROR(index.status());
  absl::StatusOr<TokenLayout> layout =
      FindTokens(file, !unknown && index->has_value() ? &**index : nullptr, FindDocuments::kYes);
  if (unknown && (!layout.ok() || layout->offset == 0)) {
    return WithMessage(
        index.status(),
        absl::StrCat(index.status().message(),
                     "; without a header a .bin may be a Megatron file with an index "
                     "beside it: allow its keys to be listed (s3:ListBucket), or give "
                     "the file another ending"));
  }
  NSA_RETURN_IF_ERROR(layout.status());
  file.ExpectUpTo(file.size());
  return std::unique_ptr<TokenReader>(new TokenReader(std::move(file), *std::move(layout)));
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
    NSA_RETURN_IF_ERROR(CheckToken(file_, layout_, position_ + i, token));
    tokens_.push_back(static_cast<Token>(token));
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
