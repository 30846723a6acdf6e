#include "common/job/data/token_layout.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/little_endian.h"
#include "common/base/status.h"
#include "common/job/data/file_kind.h"
#include "common/job/data_source.h"

namespace nsa {
namespace {

// Whether the first tokens are uint32 that nobody marked as such: read as uint16, every second one
// is the upper half of a token, which is small, and the others are many different ones.
bool LooksLikeUint32(std::string_view head) {
  constexpr size_t kDifferent = 64;
  constexpr uint16_t kLargestUpperHalf = 3;
  std::set<uint16_t> lower;
  for (; head.size() >= sizeof(uint32_t); head.remove_prefix(sizeof(uint32_t))) {
    if (LittleEndian<uint16_t>(head.substr(2)) > kLargestUpperHalf) return false;
    lower.insert(LittleEndian<uint16_t>(head));
  }
  return lower.size() >= kDifferent;
}

absl::StatusOr<TokenLayout> RawLayout(const ByteFile& file, std::string_view head) {
  if (file.size() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes (must be a multiple of 2); a token file without a header "
                        "holds little-endian uint16",
                        file.name(), file.size()));
  }
  if (LooksLikeUint32(head)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its first tokens look like uint32 (a file without a header holds uint16); save them "
        "with numpy.save(file, tokens.astype('<u4'))",
        file.name()));
  }
  return TokenLayout{.count = file.size() / 2};
}

}  // namespace

// Version 1 has GPT-2's tokens as uint16; version 7, with a magic number of its own, has Llama 3's
// as uint32.
absl::StatusOr<TokenLayout> LlmCLayout(const ByteFile& file, std::string_view head) {
  constexpr int32_t kLlama3 = 20240801;
  constexpr int64_t kHeader = 256 * sizeof(int32_t);
  if (file.size() < kHeader) {
    return absl::DataLossError(absl::StrFormat(
        "%s: %d bytes (an llm.c header has %d); the file was cut off, copy it again", file.name(),
        file.size(), kHeader));
  }
  const auto version = LittleEndian<int32_t>(head.substr(4));
  const auto count = LittleEndian<int32_t>(head.substr(8));
  const bool wide = LittleEndian<int32_t>(head) == kLlama3;
  const int32_t wanted = wide ? 7 : 1;
  const int width = wide ? 4 : 2;
  if (version != wanted) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: byte 4: llm.c version %d (%d, with uint%d tokens); write the file as version %d",
        file.name(), version, wanted, 8 * width, wanted));
  }
  const int64_t size = kHeader + width * int64_t{count};
  if (count < 0 || file.size() != size) {
    return absl::DataLossError(absl::StrFormat(
        "%s: byte 8: the header promises %d tokens, but %d bytes follow it (%d per token); the "
        "file was cut off or is damaged, copy it again",
        file.name(), count, file.size() - kHeader, width));
  }
  return TokenLayout{.offset = kHeader, .count = count, .width = width};
}

std::optional<std::filesystem::path> IndexNameOf(const std::filesystem::path& path) {
  if (path.extension() != ".bin") return std::nullopt;
  std::filesystem::path index = path;
  index.replace_extension(".idx");
  return index;
}

int64_t TokenAt(std::string_view bytes, const TokenLayout& layout) {
  if (layout.width == 1) return static_cast<uint8_t>(bytes[0]);
  if (layout.width == 2 && layout.is_signed) return LittleEndian<int16_t>(bytes);
  if (layout.width == 2) return LittleEndian<uint16_t>(bytes);
  if (layout.width == 4 && layout.is_signed) return LittleEndian<int32_t>(bytes);
  if (layout.width == 4) return LittleEndian<uint32_t>(bytes);
  return LittleEndian<int64_t>(bytes);
}

absl::Status CheckToken(const ByteFile& file, const TokenLayout& layout, int64_t position,
                        int64_t token) {
  if (token >= 0 && token < kMostTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: token %d, at byte %d: %d (from 0 to %d); use the tokens of a tokenizer with at most "
      "1,048,576",
      file.name(), position, layout.offset + position * layout.width, token, kMostTokens - 1));
}

absl::StatusOr<TokenLayout> FindTokens(const ByteFile& file, const ByteFile* index,
                                       FindDocuments documents) {
  if (index != nullptr) return MegatronLayout(file, *index, documents);
  NSA_ASSIGN_OR_RETURN(const std::string head, file.Head(kFileHeadBytes));
  const FileKindInfo info = RecogniseFile(head, file.size());
  switch (info.kind) {
    case FileKind::kUnknown:
      return RawLayout(file, head);
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

}  // namespace nsa
