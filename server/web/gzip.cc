#include <zlib.h>

#include "server/web/assets.h"

namespace nsa::server {

std::string Inflate(std::string_view gzip) {
  constexpr int kGzip = 16;
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + kGzip) != Z_OK) return "";
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(gzip.data()));
  stream.avail_in = static_cast<uInt>(gzip.size());
  std::string text;
  char buffer[16'384];
  int result = Z_OK;
  while (result == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(buffer);
    stream.avail_out = sizeof(buffer);
    result = inflate(&stream, Z_NO_FLUSH);
    text.append(buffer, sizeof(buffer) - stream.avail_out);
  }
  inflateEnd(&stream);
  return result == Z_STREAM_END ? text : "";
}

std::string Deflate(std::string_view text) {
  constexpr int kGzip = 16;
  constexpr int kMemory = 8;
  z_stream stream{};
  // The lowest level: four fifths are saved already, and processors are for training.
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS + kGzip, kMemory,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return "";
  }
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  std::string gzip(deflateBound(&stream, stream.avail_in), '\0');
  stream.next_out = reinterpret_cast<Bytef*>(gzip.data());
  stream.avail_out = static_cast<uInt>(gzip.size());
  const int result = deflate(&stream, Z_FINISH);
  gzip.resize(stream.total_out);
  deflateEnd(&stream);
  return result == Z_STREAM_END ? gzip : "";
}

}  // namespace nsa::server
