// What can be found out about the text of a file on this machine without reading all of it. The
// files are opened by OpenJobFile(), and may be made to do harm.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace nsa {

// The largest window of a .zst file that is read: 2 GiB, that of `zstd --long=31`.
inline constexpr int kZstdWindowLog = 31;

// Whether the name says .gz or .zst.
bool IsCompressed(std::string_view path);

// Up to `most` bytes of a file as it is, from byte `at` on; none if it cannot be opened.
std::string FilePart(const std::filesystem::path& path, int64_t at, int64_t most);

// The first `most` bytes of what a .gz or .zst file becomes, whatever its name: fewer if it is
// shorter or damaged, none if it is of neither kind or cannot be opened. Reads at most twice as
// many bytes of the file. Memory: twice `most`; address space, also for the window that a .zst file
// asks for.
std::string UnpackedHead(const std::filesystem::path& path, int64_t most);

// The first `most` bytes of text: UnpackedHead() of a file whose name says that it is packed, else
// those of the file.
std::string TextHead(const std::filesystem::path& path, int64_t most);

// The footer of a Parquet file (common/job/data/parquet/schema.h); empty if it has none, it is
// larger than `most` bytes, or the file cannot be opened.
std::string ParquetFooter(const std::filesystem::path& path, int64_t most);

}  // namespace nsa
