#include "common/job/data/file_text.h"

#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <memory>
#include <string_view>

#include "absl/strings/match.h"
#include "common/base/fd.h"
#include "common/base/job_file.h"
#include "common/base/little_endian.h"

namespace nsa {
namespace {

using namespace std::literals;

constexpr int64_t kPiece = 64 << 10;

// Gives `unpack` the file piece by piece, for as long as it returns true.
template <typename Unpack>
void ForEachPiece(int fd, int64_t most, Unpack unpack) {
  for (int64_t at = 0; at < 2 * most + kPiece;) {
    std::string piece = ReadSome(fd, at, kPiece);
    if (piece.empty() || !unpack(&piece)) return;
    at += std::ssize(piece);
  }
}

std::string GzipHead(int fd, int64_t most) {
  std::string text(static_cast<size_t>(most), '\0');
  z_stream stream = {};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return {};  // largest window, gzip header
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(most);
  ForEachPiece(fd, most, [&](std::string* piece) {
    stream.next_in = reinterpret_cast<Bytef*>(piece->data());
    stream.avail_in = static_cast<uInt>(piece->size());
    int result = Z_OK;
    while (stream.avail_in > 0 && stream.avail_out > 0 && result == Z_OK) {
      result = inflate(&stream, Z_NO_FLUSH);
      if (result == Z_STREAM_END) result = inflateReset(&stream);  // another member may follow
    }
    return result == Z_OK && stream.avail_out > 0;
  });
  text.resize(text.size() - stream.avail_out);
  inflateEnd(&stream);
  return text;
}

std::string ZstdHead(int fd, int64_t most) {
  std::string text(static_cast<size_t>(most), '\0');
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, kZstdWindowLog);
  ZSTD_outBuffer out = {text.data(), text.size(), 0};
  ForEachPiece(fd, most, [&](std::string* piece) {
    ZSTD_inBuffer in = {piece->data(), piece->size(), 0};
    while (in.pos < in.size && out.pos < out.size) {
      if (ZSTD_isError(ZSTD_decompressStream(stream.get(), &out, &in))) return false;
    }
    return out.pos < out.size;
  });
  text.resize(out.pos);
  return text;
}

}  // namespace

bool IsCompressed(std::string_view path) { return path.ends_with(".gz") || path.ends_with(".zst"); }

std::string FilePart(const std::filesystem::path& path, int64_t at, int64_t most) {
  const absl::StatusOr<Fd> file = OpenJobFile(path);
  return file.ok() ? ReadSome(file->get(), at, most) : std::string();
}

std::string TextHead(const std::filesystem::path& path, int64_t most) {
  return IsCompressed(path.native()) ? UnpackedHead(path, most) : FilePart(path, 0, most);
}

std::string UnpackedHead(const std::filesystem::path& path, int64_t most) {
  const absl::StatusOr<Fd> file = OpenJobFile(path);
  if (!file.ok()) return {};
  const std::string head = ReadSome(file->get(), 0, 4);
  if (head.starts_with("\x1f\x8b"sv)) return GzipHead(file->get(), most);
  if (head == "\x28\xb5\x2f\xfd"sv) return ZstdHead(file->get(), most);
  return {};
}

std::string ParquetFooter(const std::filesystem::path& path, int64_t most) {
  constexpr int64_t kTail = 8;  // length of the footer, and the magic
  const absl::StatusOr<Fd> file = OpenJobFile(path);
  struct stat status = {};
  if (!file.ok() || fstat(file->get(), &status) != 0 || status.st_size < kTail) return {};
  const int64_t size = status.st_size;
  const std::string tail = ReadSome(file->get(), size - kTail, kTail);
  if (!absl::EndsWith(tail, "PAR1") || std::ssize(tail) != kTail) return {};
  const int64_t bytes = LittleEndian<uint32_t>(tail);
  if (bytes > most || bytes > size - kTail) return {};
  std::string footer = ReadSome(file->get(), size - kTail - bytes, bytes);
  return std::ssize(footer) == bytes ? footer : std::string();
}

}  // namespace nsa
