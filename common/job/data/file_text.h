// What can be found out about the text of a packed or a Parquet file on this machine without
// reading all of it. The files are opened by OpenJobFile(), and may be made to do harm.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace nsa {

// The first `most` bytes of what a .gz or .zst file becomes, whatever its name: fewer if it is
// shorter or damaged, none if it is of neither kind or cannot be opened. Reads at most twice as
// many bytes of the file. Memory: `most`, and up to 128 MiB for the window that a .zst file asks
// for.
std::string UnpackedHead(const std::filesystem::path& path, int64_t most);

// The footer of a Parquet file (common/job/data/parquet/schema.h); empty if it has none, it is
// larger than `most` bytes, or the file cannot be opened.
std::string ParquetFooter(const std::filesystem::path& path, int64_t most);

}  // namespace nsa
