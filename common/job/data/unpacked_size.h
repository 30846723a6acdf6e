// What compressed files say of their size.
#pragma once

#include <cstdint>
#include <filesystem>

namespace nsa {

// How many bytes a .gz or .zst file says that it becomes: the size in the last bytes of gzip,
// modulo 4 GiB, or in the first frame of zstd. 0 if it says nothing, is of neither kind or cannot
// be opened (OpenJobFile()). Whoever wrote the file may have written any number.
int64_t SaidUnpackedBytes(const std::filesystem::path& path);

}  // namespace nsa
