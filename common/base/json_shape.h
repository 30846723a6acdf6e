// Of the text of JSON: limits on what it becomes when it is parsed, which may be far more than it
// has bytes, and where a document has a hash of itself.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace nsa {

// Whether JSON becomes something of about its own size: beside 10,000 of each, it has an object for
// each 128 bytes and a value for each 4. An empty object is two bytes, and some two hundred as a
// message.
bool IsAsLargeAsItLooks(std::string_view json);

// Whether no value of JSON is within more than 100 others. Parsing a deeper one costs nothing, but
// to copy or to write it is one call within the other for each level, which the stack does not
// hold.
bool IsShallow(std::string_view json);

// The position of the document's own hash, the value of its last key, which is one of `keys` (with
// their quotation marks); npos unless that is a text of this many digits.
size_t SelfHashPlace(std::string_view json, std::span<const std::string_view> keys, size_t digits);

}  // namespace nsa
