// How much of the bytes of JSON lines is text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace nsa {

// The share of the field `text_field` (empty: the default) in the bytes of a file of JSON lines,
// packed or not: bytes of text in each byte of the file once unpacked, from the lines that are
// whole in its first `most` bytes. 1 when they have no text, or the file cannot be read. Errors in
// lines are left to who reads the data.
double TextShareOfLines(const std::filesystem::path& path, const std::string& text_field,
                        int64_t most);

}  // namespace nsa
