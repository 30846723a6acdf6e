// Decompresses Snappy's raw format, which Parquet uses by default.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace nsa::train::parquet {

// The largest number of bytes that a byte of the format can become: a copy of 64 bytes takes three.
inline constexpr size_t kSnappyRatio = 22;

// Fills `to` with what `from` decompresses to. DataLoss if that is not exactly to.size() bytes, or
// if `from` is damaged.
absl::Status DecompressSnappy(std::string_view from, std::span<char> to);

}  // namespace nsa::train::parquet
