#include "worker/train/data/read/token_layout.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "worker/train/data/read/file_kind.h"
#include "worker/train/data/read/little_endian.h"

namespace nsa::train {
namespace {

absl::StatusOr<TokenLayout> RawLayout(const DataFile& file) {
  if (file.size() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes (a multiple of 2); a token file without a header holds little-endian uint16",
        file.name(), file.size()));
  }
  return TokenLayout{.count = file.size() / 2};
}

// The index beside a Megatron file. NotFound if there is none.
absl::StatusOr<DataFile> OpenIndex(const std::filesystem::path& path, ReadProgress* progress) {
  if (path.extension() != ".bin") return absl::NotFoundError("");
  std::filesystem::path index = path;
  index.replace_extension(".idx");
  return DataFile::Open(index, progress);
}

}  // namespace

absl::StatusOr<TokenLayout> LlmCLayout(const DataFile& file, std::string_view head) {
  constexpr int64_t kHeader = 256 * sizeof(int32_t);
  if (file.size() < kHeader) {
    return absl::DataLossError(absl::StrFormat(
        "%s: %d bytes (an llm.c header has %d); the file was cut off, copy it again", file.name(),
        file.size(), kHeader));
  }
  const auto version = LittleEndian<int32_t>(head.substr(4));
  const auto count = LittleEndian<int32_t>(head.substr(8));
  if (version != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: byte 4: llm.c version %d (1, with uint16 tokens); write the file as version 1",
        file.name(), version));
  }
  const int64_t size = kHeader + 2 * int64_t{count};
  if (count < 0 || file.size() != size) {
    return absl::DataLossError(absl::StrFormat(
        "%s: byte 8: the header promises %d tokens, but %d bytes follow it (2 per token); the "
        "file was cut off or is damaged, copy it again",
        file.name(), count, file.size() - kHeader));
  }
  return TokenLayout{.offset = kHeader, .count = count};
}

absl::StatusOr<TokenLayout> FindTokens(const DataFile& file, const std::filesystem::path& path,
                                       ReadProgress* progress) {
  const absl::StatusOr<DataFile> index = OpenIndex(path, progress);
  if (index.ok()) return MegatronLayout(file, *index);
  if (!absl::IsNotFound(index.status())) return index.status();
  NSA_ASSIGN_OR_RETURN(const std::string head, file.Head(kFileHeadBytes));
  const FileKindInfo info = RecogniseFile(head, file.size());
  switch (info.kind) {
    case FileKind::kUnknown:
      return RawLayout(file);
    case FileKind::kNumpy:
      return NumpyLayout(file);
    case FileKind::kLlmC:
      return LlmCLayout(file, head);
    default:
      return absl::InvalidArgumentError(absl::StrCat(file.name(), ": is ", std::string(info.name),
                                                     ", not a token file (data.source: tokens); ",
                                                     std::string(info.remedy)));
  }
}

}  // namespace nsa::train
