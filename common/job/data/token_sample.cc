#include "common/job/data/token_sample.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "common/job/data/byte_file.h"
#include "common/job/data/token_layout.h"

namespace nsa {
namespace {

constexpr int64_t kBlock = 1 << 16;  // tokens
constexpr int64_t kMostBlocks = 64;

class LocalFile final : public ByteFile {
 public:
  static absl::StatusOr<LocalFile> Open(const std::filesystem::path& path) {
    NSA_ASSIGN_OR_RETURN(Fd fd, OpenJobFile(path));
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, path.string());
    return LocalFile(path, info.st_size, std::move(fd));
  }

  absl::Status ReadAt(int64_t offset, std::span<char> to) const override {
    const std::string bytes = ReadSome(fd_.get(), offset, std::ssize(to));
    std::ranges::copy(bytes, to.begin());
    if (bytes.size() == to.size()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrFormat("%s: ends before byte %d (%d when it was opened); copy it again", name(),
                        offset + std::ssize(to), size()));
  }

 private:
  LocalFile(const std::filesystem::path& path, int64_t size, Fd fd)
      : ByteFile(path.string(), size), fd_(std::move(fd)) {}

  Fd fd_;
};

absl::Status LookAt(const LocalFile& file, const TokenLayout& layout, int64_t begin,
                    TokenSample* sample) {
  const int64_t count = std::min(kBlock, layout.count - begin);
  std::string bytes(static_cast<size_t>(count * layout.width), '\0');
  NSA_RETURN_IF_ERROR(file.ReadAt(layout.offset + begin * layout.width, bytes));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token =
        TokenAt(std::string_view(bytes).substr(static_cast<size_t>(i * layout.width)), layout);
    NSA_RETURN_IF_ERROR(CheckToken(file, layout, begin + i, token));
    if (token <= sample->largest) continue;
    sample->largest = token;
    sample->position = begin + i;
  }
  sample->looked_at += count;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenSample> SampleTokens(const std::filesystem::path& path) {
  NSA_ASSIGN_OR_RETURN(const LocalFile file, LocalFile::Open(path));
  std::optional<LocalFile> index;
  const std::optional<std::filesystem::path> index_name = IndexNameOf(path);
  std::error_code error;
  if (index_name && std::filesystem::exists(*index_name, error)) {
    NSA_ASSIGN_OR_RETURN(index, LocalFile::Open(*index_name));
  }
  NSA_ASSIGN_OR_RETURN(const TokenLayout layout,
                       FindTokens(file, index ? &*index : nullptr, FindDocuments::kNo));
  TokenSample sample = {.tokens = layout.count};
  const int64_t blocks = (layout.count + kBlock - 1) / kBlock;
  const int64_t looks = std::min(blocks, kMostBlocks);
  for (int64_t i = 0; i < looks; ++i) {
    const int64_t block = looks == 1 ? 0 : i * (blocks - 1) / (looks - 1);
    NSA_RETURN_IF_ERROR(LookAt(file, layout, block * kBlock, &sample));
  }
  return sample;
}

}  // namespace nsa
