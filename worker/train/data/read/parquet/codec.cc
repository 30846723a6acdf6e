#include "worker/train/data/read/parquet/codec.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nsa::train::parquet {
namespace {

constexpr std::string_view kNames[] = {"uncompressed", "snappy", "gzip", "lzo",
                                       "brotli",       "lz4",    "zstd", "lz4_raw"};
// A byte of deflate becomes at most 1,032.
constexpr size_t kGzipRatio = 1040;
// A copy of 64 bytes takes three.
constexpr size_t kSnappyRatio = 22;
// A byte of LZ4 lengthens a copy by at most 255.
constexpr size_t kLz4Ratio = 256;
constexpr Codec kCodecs[] = {kUncompressed, kSnappy, kGzip, kBrotli, kZstd, kLz4Raw};

absl::Status WrongSize(uint64_t got, size_t size) {
  return absl::DataLossError(
      absl::StrFormat("decompresses to %d bytes, its header says %d", got, size));
}

absl::Status Gunzip(std::string_view from, char* to, size_t size) {
  z_stream z{};
  if (inflateInit2(&z, 15 + 32) != Z_OK) return absl::ResourceExhaustedError("gzip: no memory");
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(from.data()));
  z.avail_in = static_cast<uInt>(from.size());
  z.next_out = reinterpret_cast<Bytef*>(to);
  z.avail_out = static_cast<uInt>(size);
  int result = inflate(&z, Z_FINISH);
  while (result == Z_STREAM_END && z.avail_in > 0) {  // members may follow each other
    inflateReset(&z);
    result = inflate(&z, Z_FINISH);
  }
  const size_t left = z.avail_out;
  inflateEnd(&z);
  if (result != Z_STREAM_END) return absl::DataLossError("gzip: is damaged");
  return left == 0 ? absl::OkStatus() : WrongSize(size - left, size);
}

// The format begins with the size.
absl::Status Unsnappy(std::string_view from, char* to, size_t size) {
  size_t got = 0;
  if (snappy_uncompressed_length(from.data(), from.size(), &got) == SNAPPY_OK && got != size) {
    return WrongSize(got, size);
  }
  if (snappy_uncompress(from.data(), from.size(), to, &size) != SNAPPY_OK) {
    return absl::DataLossError("snappy: is damaged");
  }
  return absl::OkStatus();
}

absl::Status Unzstd(std::string_view from, char* to, size_t size) {
  const size_t got = ZSTD_decompress(to, size, from.data(), from.size());
  if (ZSTD_isError(got)) {
    return absl::DataLossError(absl::StrCat("zstd: ", ZSTD_getErrorName(got)));
  }
  return got == size ? absl::OkStatus() : WrongSize(got, size);
}

absl::Status Unbrotli(std::string_view from, char* to, size_t size) {
  size_t got = size;
  const BrotliDecoderResult result =
      BrotliDecoderDecompress(from.size(), reinterpret_cast<const uint8_t*>(from.data()), &got,
                              reinterpret_cast<uint8_t*>(to));
  if (result != BROTLI_DECODER_RESULT_SUCCESS) return absl::DataLossError("brotli: is damaged");
  return got == size ? absl::OkStatus() : WrongSize(got, size);
}

// The sizes are below 2 GiB, as those of all pages.
absl::Status Unlz4(std::string_view from, char* to, size_t size) {
  const int got =
      LZ4_decompress_safe(from.data(), to, static_cast<int>(from.size()), static_cast<int>(size));
  if (got < 0) return absl::DataLossError("lz4_raw: is damaged");
  return static_cast<size_t>(got) == size ? absl::OkStatus()
                                          : WrongSize(static_cast<uint64_t>(got), size);
}

// The most bytes that `from` can become.
size_t Largest(int64_t codec, size_t from) {
  if (codec == kUncompressed) return from;
  if (codec == kSnappy) return from * kSnappyRatio;
  if (codec == kGzip) return from * kGzipRatio;
  if (codec == kLz4Raw) return from * kLz4Ratio;
  return SIZE_MAX;
}

// A page of up to so many bytes may be as small as its codec can make it, a larger one not.
constexpr size_t kAnyPage = size_t{256} << 20;
constexpr size_t kMostTimes = 64;

}  // namespace

std::string CodecName(int64_t codec) {
  if (codec < 0 || codec >= std::ssize(kNames)) return absl::StrFormat("codec %d", codec);
  return std::string(kNames[codec]);
}

absl::Status CheckCodec(int64_t codec) {
  if (std::ranges::find(kCodecs, codec) != std::end(kCodecs)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("compressed with ", CodecName(codec),
                   " (uncompressed, snappy, gzip, brotli, zstd or lz4_raw); write the file again "
                   "with one of them"));
}

absl::Status Decompress(int64_t codec, std::string_view from, size_t size, PageBytes* to) {
  NSA_RETURN_IF_ERROR(CheckCodec(codec));
  if (size > Largest(codec, from.size())) {
    return absl::DataLossError(absl::StrFormat("%d bytes of %s, its header says they are %d",
                                               from.size(), CodecName(codec), size));
  }
  if (size > kAnyPage && size / kMostTimes > from.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes that become %d (at most %d times, or 256 MiB); write the file "
                        "again with smaller pages",
                        from.size(), size, kMostTimes));
  }
  char* const bytes = to->Resize(size);
  if (size == 0) return absl::OkStatus();
  switch (codec) {
    case kSnappy:
      return Unsnappy(from, bytes, size);
    case kGzip:
      return Gunzip(from, bytes, size);
    case kBrotli:
      return Unbrotli(from, bytes, size);
    case kZstd:
      return Unzstd(from, bytes, size);
    case kLz4Raw:
      return Unlz4(from, bytes, size);
    default:
      if (from.size() != size) return WrongSize(from.size(), size);
      std::memcpy(bytes, from.data(), size);
      return absl::OkStatus();
  }
}

}  // namespace nsa::train::parquet
