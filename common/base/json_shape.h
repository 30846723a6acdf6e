// A limit on what JSON becomes when it is parsed, which may be far more than it has bytes.
#pragma once

#include <string_view>

namespace nsa {

// Whether JSON becomes something of about its own size: beside 10,000 of each, it has an object for
// each 128 bytes and a value for each 4. An empty object is two bytes, and some two hundred as a
// message.
bool IsAsLargeAsItLooks(std::string_view json);

}  // namespace nsa
